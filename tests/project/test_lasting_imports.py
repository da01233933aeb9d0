"""Importing modules at the start of commands without garbage collection."""

from __future__ import annotations

import gc
import subprocess
import sys

from opdump.interpreter.late_imports import imported_for_good

_PROGRAM = """
import gc
from opdump.interpreter.late_imports import imported_for_good
with imported_for_good("opdump.conversion"):
    during = gc.isenabled()
    import opdump.conversion
print(during, gc.isenabled(), gc.get_freeze_count() > 0)
gc.unfreeze()
gc.disable()
with imported_for_good("opdump.reports"):
    import opdump.reports
print(gc.isenabled())
"""


def test_imports_are_not_searched_and_what_follows_is() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "False"]


def test_a_module_that_was_imported_before_changes_nothing() -> None:
    frozen = gc.get_freeze_count()
    with imported_for_good("opdump.interpreter.late_imports"):
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
