"""What people read: records and counts made into text, tables and JSON. Nothing here captures or loads by itself."""

from __future__ import annotations
