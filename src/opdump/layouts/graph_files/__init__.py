"""Graph files of the graph engine (GE) and of MindSpore."""
