"""Element types of dump files: numbers, names, and values of narrow ones."""
