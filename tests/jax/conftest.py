"""Tests in `capture/` need JAX: `make test-jax` runs them in an environment with JAX (`run`), each file in a separate process."""

from __future__ import annotations

# pytest still collects a file that is named on the command line.
collect_ignore = ["capture"]
