"""Every program of the example set in every mode, as if on a device: `make forced-device`. `test_forced_programs` runs a selection of these."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch.forced_device import MODES, STREAMS, assert_left_alone_in_graphs, assert_same_on_a_device
from tests.torch.forced_programs import PROGRAMS


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_on_a_device_is_the_same_and_its_dump_is_that_of_the_host(
    program: str, mode: str, streams: str, tmp_path: Path
) -> None:
    assert_same_on_a_device(PROGRAMS[program], mode, streams, tmp_path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_is_recorded_into_a_graph_is_left_unchanged(program: str, mode: str, tmp_path: Path) -> None:
    assert_left_alone_in_graphs(PROGRAMS[program], mode, tmp_path)
