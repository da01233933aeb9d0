"""Processes that a captured program starts. They are captured as further ranks of the same run.

The process in which capture begins creates a directory for its family and names it in the environment. A process that inherits the variable, or was
forked, finds there what to capture, claims a number of its own, and leaves a note about what it did. The first process reports the notes.
"""

from __future__ import annotations

from opdump.capturing.children.family import FAMILY_VARIABLE, ChildReport, Family, Role, role_here, role_of_command

__all__ = ["FAMILY_VARIABLE", "ChildReport", "Family", "Role", "role_here", "role_of_command"]
