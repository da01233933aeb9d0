"""Tests in `capture/` need MindSpore: `make test-mindspore` runs them where it is (`run`). Each file has a process of its own."""

from __future__ import annotations

# Where a file is named pytest collects it all the same.
collect_ignore = ["capture"]
