"""Writes a script of about twenty lines that replays one recorded operator with only PyTorch and numpy.

Small inputs are in the script, as bytes; larger ones are in an npz file of the same name, where dtypes that numpy lacks are
integers of the same size.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from opdump.adapters.replay import Array, Script
from opdump.adapters.torch.replay_arguments import call_of
from opdump.adapters.torch.replay_tensors import layout_of
from opdump.adapters.torch.schemas import Found
from opdump.records import Memory, OpRecord, TensorRecord
from opdump.tensor_elements import torch_tensor

_INLINE: Final = 1024
"""Up to this many bytes of inputs and outputs are written into the script itself."""
# Names that the script itself uses.
_TAKEN: Final = frozenset({"data", "np", "run", "tensor", "torch", "width", "result"})
_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CALL_WIDTH: Final = 120

_FILED: Final = ('with np.load(__file__.removesuffix(".py") + ".npz") as file:', "    data = dict(file)", "")
_TENSOR: Final = """\
def tensor({what}, dtype, shape, strides=None, width=None):
    made = {elements}
    made = made.to({wide} if width and {floats} else dtype)
    return torch.empty_strided(shape, strides, dtype=made.dtype).copy_(made) if strides else made.clone()"""
_FILED_ELEMENTS: Final = "torch.from_numpy(data[name]).view(dtype)"
_INLINE_ELEMENTS: Final = "torch.frombuffer(bytearray.fromhex(elements), dtype=dtype).reshape(shape)"
_END: Final = """\
with torch.no_grad():
    now, exact = run(), run({reference})
for slot in now:
    other = exact[slot] + 0.0
    for when, given in (("recorded", recorded.get(slot, now[slot])), ("now", now[slot])):
        one = given.to(other.dtype)
        apart = torch.where((one == other) | (one.isnan() & other.isnan()), 0, (one - other).abs()).max().item()
        print(f"output.{{slot}} {{when}}, {{given.dtype}}: {{apart:.6g}} from {reference}, its largest element is {{other.abs().max().item():.6g}}")"""


@dataclass(frozen=True, slots=True)
class _Code:
    """An expression that is inserted unquoted into the text of a call."""

    text: str

    def __repr__(self) -> str:
        return self.text


def script_of(
    func: Any,
    op: OpRecord,
    inputs: Mapping[int, TensorRecord],
    values: Mapping[int, Array],
    outputs: Mapping[int, TensorRecord],
    found: Sequence[Found],
    *,
    title: str,
    reference: str,
) -> Script:
    """The script. `found` has the outputs to compare, with their places in the result; `outputs` has their records."""
    names = {record.argument: _variable(record.argument) for record in inputs.values()}
    tensors = {
        names[record.argument]: _Stored(torch_tensor(values[slot], record.dtype), record.memory)
        for slot, record in inputs.items()
    }
    recorded = {
        slot: _Stored(torch_tensor(outputs[slot].numpy(), outputs[slot].dtype))
        for slot, _, _ in found
        if slot in outputs
    }
    stored = {**tensors, **{f"output_{slot}": tensor for slot, tensor in recorded.items()}}
    is_inline = all(tensor.size for tensor in stored.values()) and sum(each.size for each in stored.values()) <= _INLINE
    args, kwargs = call_of(func, op, {argument: _Code(name) for argument, name in names.items()}, None)
    is_complex = any(tensor.is_complex for tensor in tensors.values())
    lines = [
        f'"""{title}"""',
        *(() if is_inline else ("import numpy as np",)),
        "import torch",
        "",
        *(() if is_inline else _FILED),
        _TENSOR.format(
            what="elements" if is_inline else "name",
            elements=_INLINE_ELEMENTS if is_inline else _FILED_ELEMENTS,
            wide="torch.complex128 if made.is_complex() else width" if is_complex else "width",
            floats="(made.is_floating_point() or made.is_complex())" if is_complex else "made.is_floating_point()",
        ),
        "",
        "def run(width=None):",
        *(f"    {name} = {tensor.code(name, 'width=width', is_inline=is_inline)}" for name, tensor in tensors.items()),
        *_call(f"torch.ops.{_path(op.kernel)}", args, kwargs),
        f"    return {{{_results(found, names)}}}",
        "",
        f"recorded = {{{', '.join(f'{slot}: ' + tensor.code(f'output_{slot}', is_inline=is_inline) for slot, tensor in recorded.items())}}}",
        _END.format(reference=f"torch.{reference}"),
        "",
    ]
    return Script("\n".join(lines), {} if is_inline else {name: tensor.array for name, tensor in stored.items()})


class _Stored:
    """A tensor that the script rebuilds."""

    def __init__(self, tensor: torch.Tensor, memory: Memory | None = None) -> None:
        self._shape = tuple(tensor.shape)
        self._once, self._strides, _ = layout_of(tensor, memory)
        self._dtype = tensor.dtype

    @property
    def is_complex(self) -> bool:
        return self._dtype.is_complex

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._once.numel() * self._once.element_size()

    @property
    def array(self) -> Array:
        """The values; as integers of the same size if numpy lacks the dtype."""
        tensor = self._once.contiguous()
        try:
            found: Array = tensor.numpy()
        except (TypeError, RuntimeError):
            found = tensor.view(_INTEGERS[tensor.element_size()]).numpy()
        return found

    def code(self, name: str, *more: str, is_inline: bool) -> str:
        """The expression that rebuilds the tensor."""
        shape = tuple(self._once.shape)
        strides = () if self._once.contiguous().stride() == self._strides else (str(tuple(self._strides)),)
        what = self.array.tobytes().hex() if is_inline else name
        made = f"tensor({', '.join((json.dumps(what), str(self._dtype), str(shape), *strides, *more))})"
        return made if shape == self._shape else f"{made}.expand({self._shape})"


def _variable(argument: str) -> str:
    name = re.sub(r"\W+", "_", argument).strip("_")
    return f"{name}_" if keyword.iskeyword(name) or name in _TAKEN else name


def _path(kernel: str) -> str:
    """`aten.add.Tensor`."""
    namespace, _, name = kernel.partition("::")
    return f"{namespace}.{name}" if "." in name else f"{namespace}.{name}.default"


def _call(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    parts = [*map(_code, args), *(f"{name}={_code(value)}" for name, value in kwargs.items())]
    lines = [f"    result = {function}("]
    for number, part in enumerate(parts):
        text = part + (", " if number < len(parts) - 1 else ")")
        if len(lines[-1]) + len(text) > _CALL_WIDTH:
            lines.append(" " * 8)
        lines[-1] += text
    return [line.rstrip() for line in lines] if parts else [f"{lines[0]})"]


def _code(value: Any) -> str:
    """The expression of an argument."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_code, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.dtype):
        return f"width or {value}" if value.is_floating_point else str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    return repr(value)


def _results(found: Sequence[Found], names: Mapping[str, str]) -> str:
    """The outputs by slot: parts of the result, or arguments that were written."""
    return ", ".join(
        f"{slot}: {f'result{path}' if not path or path.startswith('[') else names[path]}" for slot, path, _ in found
    )
