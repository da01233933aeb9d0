"""Captures JAX programs: compiled functions through a twin of their jaxpr, single operators directly."""
