"""The table of outputs that contain uninitialised memory is complete and correct."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opdump.op_types.unspecified import UNSPECIFIED, unspecified_outputs

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("unwritten_memory.py")


def test_unspecified_outputs_are_looked_up_by_the_kernel_names_of_records() -> None:
    assert unspecified_outputs("aten::mkldnn_rnn_layer") == {3}
    assert unspecified_outputs("aten::_ctc_loss.Tensor") == {1}
    assert unspecified_outputs("aten::_thnn_fused_lstm_cell") == frozenset()
    assert unspecified_outputs("mine::mkldnn_rnn_layer") == frozenset()
    assert unspecified_outputs("") == frozenset()


def test_no_framework_is_needed() -> None:
    code = (
        "import sys; from opdump.op_types.unspecified import unspecified_outputs as of; "
        "assert of('aten::_cudnn_rnn') == {3}; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kernel", sorted(UNSPECIFIED))
def test_the_slots_are_those_of_tensors_that_the_schema_returns(kernel: str) -> None:
    packet = getattr(torch.ops.aten, kernel, None)
    if packet is None:
        pytest.skip(f"this PyTorch has no {kernel}")
    operator = getattr(packet, packet.overloads()[0])
    names = [value.name for value in operator._schema.returns if str(value.type) == "Tensor"]
    assert max(UNSPECIFIED[kernel]) < len(names)
    told = {names[slot] for slot in UNSPECIFIED[kernel]} - {""}
    assert told <= {"philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask"}


def _checksums(byte: int) -> list[str]:
    tunables = f"glibc.malloc.tcache_count=0:glibc.malloc.perturb={byte}"
    environment = {**os.environ, "GLIBC_TUNABLES": tunables, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator can fill memory")
def test_kernels_of_the_cpu_leave_no_other_memory_unwritten() -> None:
    one, other = _checksums(17), _checksums(90)
    assert len(one) == len(other) > 100
    differ = set()
    for line, its_twin in zip(one, other, strict=True):
        _, kernel, slot, _ = line.split()
        assert its_twin.split()[1:3] == [kernel, slot]
        if line != its_twin:
            differ.add((kernel, int(slot)))
    assert all(slot in unspecified_outputs(kernel) for kernel, slot in differ), differ
    assert ("aten::_ctc_loss", 1) in {(kernel.partition(".")[0], slot) for kernel, slot in differ}
    if any(" aten::mkldnn_rnn_layer " in line for line in one):
        assert ("aten::mkldnn_rnn_layer", 3) in differ
