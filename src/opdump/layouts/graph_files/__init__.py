"""Files that hold a graph: those of GE and those of MindSpore."""
