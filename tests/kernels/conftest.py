from __future__ import annotations

from collections.abc import Iterator

import pytest

from opdump import kernels


@pytest.fixture(params=kernels.instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of this machine in turn."""
    widest = kernels.instruction_sets()[-1]
    kernels.use_instruction_set(request.param)
    yield request.param
    kernels.use_instruction_set(widest)


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """Restore the number of threads after the test."""
    before = kernels.threads()
    yield
    kernels.set_threads(before)
