"""Captures JAX programs: compiled calls through a twin of their jaxpr, single operators as they are."""
