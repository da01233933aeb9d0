"""A dump, read."""
