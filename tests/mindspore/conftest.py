"""Tests in `capture/` need MindSpore: `make test-mindspore` runs them in an environment with MindSpore (`run`), each file in a separate process."""

from __future__ import annotations

# pytest still collects a file that is named on the command line.
collect_ignore = ["capture"]
