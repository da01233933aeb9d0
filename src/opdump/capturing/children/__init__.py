"""Processes that a program under capture starts: they are captured as further ranks of the same run.

The process where capture begins makes a directory for its family, and names it in the environment. Whoever inherits that, or was
forked, finds there what to capture, claims a number of its own, and leaves a note of what it did; the first process tells it.
"""

from __future__ import annotations

from opdump.capturing.children.family import FAMILY_VARIABLE, Family
from opdump.capturing.children.reports import ChildReport
from opdump.capturing.children.roles import Role, role_here, role_of_command

__all__ = ["FAMILY_VARIABLE", "ChildReport", "Family", "Role", "role_here", "role_of_command"]
