"""The packed layout: the elements of a run in one file, beside the index that says where each tensor is."""
