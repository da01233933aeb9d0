"""The example set on a simulated device: the same answer as without capture, and the same dump as on the host.

Each program is tested in one or two modes, each mode with several programs, on one stream and on alternating streams, and while recorded into a
graph. Every program in every mode: `make forced-device`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch.forced_device import MODES, STREAMS, assert_left_alone_in_graphs, assert_same_on_a_device
from tests.torch.forced_programs import PROGRAMS
from tests.torch.releases import RELEASE

_LARGE = (
    *(
        "alexnet",
        "transformer",
        "convnet",
        "framework/attention",
        "framework/nested_derivatives",
        "framework/optimizers",
    ),
    *("framework/parametrisations", "framework/recurrent"),
)
"""Slow programs, which are tested in one mode only; so are all inference programs."""
_FEW = ("exception", "overflow", "acl overflow")
"""Modes that write nothing for most programs."""


def _ask_the_release(program: str) -> None:
    if RELEASE < (2, 11) and program == "framework/functional_transforms, inference":
        pytest.skip(
            "up to PyTorch 2.10 it fails in inference mode, also without a capture: vmap has no rule for aten::_make_dual"
        )


def _chosen() -> list[tuple[str, str, str]]:
    """A selection in which neighbours, which are similar, are tested in different modes."""
    modes, streams = list(MODES), list(STREAMS)
    chosen = []
    for number, program in enumerate(PROGRAMS):
        for more in range(1 if program.startswith(_LARGE) or program.endswith("inference") else 2):
            place = 5 * number + 8 * more
            chosen.append((program, modes[place % len(modes)], streams[1 if more == 0 else place % 2]))
    # The overflowing and failing program, in the modes that detect it.
    chosen += [("overflow, training", mode, "turns") for mode in _FEW]
    return list(dict.fromkeys(chosen))


@pytest.mark.parametrize(("program", "mode", "streams"), _chosen())
def test_a_program_on_a_device_is_the_same_and_its_dump_is_that_of_the_host(
    program: str, mode: str, streams: str, tmp_path: Path
) -> None:
    _ask_the_release(program)
    found = assert_same_on_a_device(PROGRAMS[program], mode, streams, tmp_path)
    if mode not in (*_FEW, "watch", "marks", "acl op") or program.startswith("overflow, t"):
        assert found > 1


@pytest.mark.parametrize(("number", "program"), list(enumerate(PROGRAMS)))
def test_a_program_that_is_recorded_into_a_graph_is_left_unchanged(number: int, program: str, tmp_path: Path) -> None:
    _ask_the_release(program)
    assert assert_left_alone_in_graphs(PROGRAMS[program], list(MODES)[3 * number % len(MODES)], tmp_path) > 0


def test_the_choice_holds_every_program_and_every_mode() -> None:
    programs, modes, streams = (set(found) for found in zip(*_chosen(), strict=True))
    assert (programs, modes, streams) == (set(PROGRAMS), set(MODES), set(STREAMS))
