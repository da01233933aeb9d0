"""Printed output: records and counts as text, tables and JSON. Nothing here captures or loads anything."""

from __future__ import annotations
