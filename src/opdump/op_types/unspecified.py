"""Lists the outputs of kernels with unspecified content (internal memory, or parts that are not written), and the inputs that
kernels only write.

    >>> sorted(unspecified_outputs("aten::_scaled_dot_product_efficient_attention"))
    [2, 3]
    >>> unspecified_outputs("aten::add.Tensor")
    frozenset()
    >>> sorted(unspecified_outputs("AdamWeightDecay"))
    [0, 1, 2]
    >>> only_overwrites("c10d::recv_", "tensors[0]"), only_overwrites("c10d::send", "tensors[0]")
    (True, False)

Runs that agree may differ in these, so comparing them proves nothing. Slots are those of records, which count tensors: an output
that is a number has none. The entries for CPU kernels were found by experiment: the kernel ran twice with different bytes in its
memory (tests/torch/test_operators.py). The entries for devices follow PyTorch's schemas: seeds and offsets of a
generator, which are set only if dropout is active; masks, which are made only for debugging; reserves, which cuDNN and MIOpen
keep for the gradient. MindSpore operators are identified only by their type; on a CPU some of its optimizers change their inputs,
and write no output (tests/parity/parity_op_types.py), and its batch norm writes two of five.
"""

from __future__ import annotations

from typing import Final

from opdump.op_types import is_dispatched

_NONE: Final[frozenset[int]] = frozenset()
_SEED_OFFSET: Final = frozenset({2, 3})
_SEED_OFFSET_MASK: Final = frozenset({2, 3, 4})
_SEED_OFFSET_MASK_BEHIND_LENGTHS: Final = frozenset({4, 5, 6})
_RESERVE: Final = frozenset({3})

UNSPECIFIED: Final = {
    "mkldnn_rnn_layer": _RESERVE,  # its workspace
    "_ctc_loss": frozenset({1}),  # log alphas beyond the length of an input or a target
    "_cudnn_rnn": _RESERVE,
    "miopen_rnn": _RESERVE,
    "cudnn_batch_norm": _RESERVE,
    "_batch_norm_impl_index": _RESERVE,
    "_batch_norm_with_update": _RESERVE,
    "_batch_norm_with_update_functional": _RESERVE,
    "_batch_norm_no_update": _RESERVE,
    "_scaled_dot_product_efficient_attention": _SEED_OFFSET,
    "_efficient_attention_forward": _SEED_OFFSET,
    "_flash_attention_forward": _SEED_OFFSET_MASK,
    "_scaled_dot_product_flash_attention": _SEED_OFFSET_MASK_BEHIND_LENGTHS,
    "_scaled_dot_product_cudnn_attention": _SEED_OFFSET_MASK_BEHIND_LENGTHS,
    "_scaled_dot_product_fused_attention_overrideable": _SEED_OFFSET_MASK_BEHIND_LENGTHS,
    "_cudnn_attention_forward": _SEED_OFFSET_MASK_BEHIND_LENGTHS,
}
"""By the name of PyTorch's kernel, without namespace and overload."""

UNSPECIFIED_ELSEWHERE: Final = {"fsdp::all_gather_copy_in": frozenset({1})}
"""By the name of a kernel outside of PyTorch's own namespace."""

OVERWRITTEN: Final = {
    **dict.fromkeys(("c10d::recv_", "c10d::recv_any_source_"), "tensors"),
    **dict.fromkeys(("c10d::allgather_", "c10d::reduce_scatter_", "c10d::gather_"), "output_tensors"),
    **dict.fromkeys(("c10d::scatter_", "c10d::alltoall_"), "output_tensors"),
    **dict.fromkeys(("c10d::_allgather_base_", "c10d::_reduce_scatter_base_"), "output_tensor"),
    **dict.fromkeys(("c10d::allgather_into_tensor_coalesced_", "c10d::reduce_scatter_tensor_coalesced_"), "outputs"),
    "c10d::allgather_coalesced_": "output_lists",
    "c10d::alltoall_base_": "output",
    "fsdp::all_gather_copy_in": "all_gather_output",
}
"""The argument that a kernel only writes, in addition to `out`, which is one in every namespace."""

UNSPECIFIED_OF_MINDSPORE: Final = {
    # weight and moments, which are inputs 0, 1, 2
    "Adam": frozenset({0, 1, 2}),
    "AdamWeightDecay": frozenset({0, 1, 2}),
    # On a CPU, the running mean and variance, which are inputs 3 and 4. A device writes the statistics of the batch there.
    "mindspore::BatchNorm": frozenset({1, 2}),
}
"""By the type of MindSpore's operator, or by the kernel if it is so only in programs that opdump captured."""


def unspecified_outputs(kernel: str) -> frozenset[int]:
    """The slots of outputs with at least partly unspecified content; none for an unknown kernel.

    `kernel` is the kernel of a record, `aten::_cudnn_rnn`, with an overload if it has one; or the type of an operator if its
    framework does not name kernels.
    """
    namespace, _, name = kernel.partition("::")
    if not is_dispatched(kernel):
        return UNSPECIFIED_OF_MINDSPORE.get(kernel) or UNSPECIFIED_OF_MINDSPORE.get(name or kernel, _NONE)
    if namespace != "aten":
        return UNSPECIFIED_ELSEWHERE.get(kernel.partition(".")[0], _NONE)
    return UNSPECIFIED.get(name.partition(".")[0], _NONE)


def only_overwrites(kernel: str, argument: str) -> bool:
    """Whether a kernel only writes this argument (`out[1]`), so that its content before the call is arbitrary."""
    name = argument.partition("[")[0]
    return is_dispatched(kernel) and (name == "out" or OVERWRITTEN.get(kernel.partition(".")[0]) == name != "")
