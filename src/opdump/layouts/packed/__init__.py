"""The packed layout: the elements of a run in one file, and an index with the position of each tensor."""
