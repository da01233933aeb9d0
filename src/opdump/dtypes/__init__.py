"""Element types of dump files: numbers, names, and the values of narrow types."""
