"""Hashes of what captures write, of what configs are read as, and of what conversions produce: a change of structure changes none of them."""
