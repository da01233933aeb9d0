"""Reads dumps."""
