"""Dialects of dump configurations. Each is resolved to a DumpPlan."""
