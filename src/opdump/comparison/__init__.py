"""Compares two runs and names the operator that introduced the difference (docs/compare.md)."""
