"""Imports, modules and processes of the Python interpreter."""
