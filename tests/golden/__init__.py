"""Hashes of what captures write, how configs are read and what conversions produce; refactoring must not change any."""
