"""Runs one operator of a dump again."""
