"""Dialects of dump configurations; each resolves to a DumpPlan."""
