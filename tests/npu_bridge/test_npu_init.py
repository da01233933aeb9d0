"""Helpers of `npu_bridge.npu_init` that need no TensorFlow; tests/parity tests the others."""

from __future__ import annotations

import pytest

from opdump.npu_bridge import npu_init


def test_lists_and_optimizers_are_given_back() -> None:
    hooks: list[object] = [1]
    assert npu_init.npu_hooks_append(hooks) is hooks
    assert npu_init.npu_callbacks_append(hooks) is hooks
    assert hooks == [1]
    assert npu_init.npu_callbacks_append() == npu_init.npu_callbacks_append((1, 2)) == []
    optimizer = object()
    assert npu_init.npu_tf_optimizer(optimizer) is optimizer
    assert npu_init.npu_keras_optimizer(optimizer) is optimizer
    assert npu_init.npu_distributed_optimizer_wrapper(optimizer) is optimizer


def test_ranks_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK_ID", raising=False)
    monkeypatch.delenv("RANK_SIZE", raising=False)
    assert (npu_init.get_rank_id(), npu_init.get_rank_size(), npu_init.get_local_rank_id()) == (0, 1, 0)
    monkeypatch.setenv("RANK_ID", "3")
    monkeypatch.setenv("RANK_SIZE", "8")
    assert (npu_init.get_npu_rank_id(), npu_init.get_npu_rank_size()) == (3, 8)
    monkeypatch.setenv("RANK_ID", "three")
    with pytest.raises(ValueError, match="RANK_ID is 'three', expected a number"):
        npu_init.get_rank_id()


def test_a_shutdown_operation_of_the_program_is_run_and_none_is_not() -> None:
    class Session:
        def __init__(self) -> None:
            self.done: list[object] = []

        def run(self, operation: object) -> None:
            self.done.append(operation)

        def close(self) -> None:
            self.done.append("closed")

    session = Session()
    npu_init.shutdown_resource(session, None)
    npu_init.shutdown_resource(session, "end")
    npu_init.close_session(session)
    assert session.done == ["end", "closed"]


def test_every_listed_name_is_there_and_a_missing_one_is_told() -> None:
    lazy = {"NPUEstimator", "NPURunConfig", "NpuEmptyHook", "RewriterConfig"}
    assert lazy == {name for name in npu_init.__all__ if name not in vars(npu_init)}
    with pytest.raises(AttributeError, match=r"npu_init' has no attribute 'NPUOptimizer'; docs/tensorflow-config"):
        npu_init.NPUOptimizer  # noqa: B018  # tests the access
