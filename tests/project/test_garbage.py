"""Garbage collection is postponed within a block, and normal again after it."""

from __future__ import annotations

import gc

import pytest

from opdump.interpreter.critical_sections import collected_rarely


def test_garbage_is_looked_for_less_often_in_the_block_alone() -> None:
    before = gc.get_threshold()
    with collected_rarely():
        assert gc.get_threshold()[0] > 10 * before[0]
        assert gc.isenabled()
    assert gc.get_threshold() == before


def test_a_block_that_fails_leaves_it_as_before() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), collected_rarely():
        _ = 1 / 0
    assert gc.get_threshold() == before
