"""Replays recorded PyTorch operators in a chosen precision, through the dispatcher (`torch.ops`), and writes scripts that do."""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from opdump.adapters.replay import AS_RECORDED, Array, Replayed, Replayer, Script
from opdump.adapters.torch.private_names import operator_schema
from opdump.adapters.torch.schemas import Found, OperatorSchema, schema_of, tensors_returned
from opdump.errors import CannotReplayError
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import Memory, OpRecord, TensorRecord, torch_tensor

# Rebuilds recorded tensors, with their strides, in their own or another dtype.

_ALIGNED: Final = 64
"""Offsets are reduced modulo this number of elements: every kernel sees the same alignment."""
_MOST_MEMORY: Final = 64
"""If the strides need more than this many times the memory of the values, the tensor is made contiguous."""


def empty_as(record: TensorRecord) -> Array:
    """Zeros for memory that was not written before the operator."""
    return np.zeros(record.shape, "float32" if record.dtype.startswith(("bfloat16", "float8")) else record.dtype)


def tensor_of(values: Array, record: TensorRecord, floating: torch.dtype | None) -> torch.Tensor:
    """The recorded tensor with these values, in new memory. Floats have the type `floating`, or the recorded type if it is None."""
    kind = getattr(torch, record.dtype, None)
    if floating is None:
        made = torch_tensor(values, record.dtype)
    else:
        # A copy, because operators may write to their arguments, and `values` must not change.
        made = torch.from_numpy(np.array(values, values.dtype.newbyteorder("="), copy=True))
        if made.is_floating_point():
            kind = floating
        elif made.is_complex():
            kind = torch.complex128 if floating is torch.float64 else torch.complex64
        elif isinstance(kind, torch.dtype) and kind.is_floating_point:
            kind = made.dtype
    return _laid_out(made.to(kind) if isinstance(kind, torch.dtype) else made, record.memory)


def layout_of(values: torch.Tensor, memory: Memory | None) -> tuple[torch.Tensor, tuple[int, ...], int]:
    """The memory layout of a tensor, on which kernels depend: values (expanded ones once), strides, and an offset.

    The offset preserves the alignment. If the layout is unknown, or gaps need too much memory, the tensor is contiguous.
    """
    if memory is not None and len(memory.strides) == values.dim() and 0 not in values.shape:
        once = values[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in memory.strides)]
        offset = memory.offset % _ALIGNED
        if _extent(once, memory.strides, offset) <= _MOST_MEMORY * once.numel() + _ALIGNED:
            return once, memory.strides, offset
    values = values.contiguous()
    return values, values.stride(), 0


def _extent(values: torch.Tensor, strides: tuple[int, ...], offset: int) -> int:
    return offset + 1 + sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True))


def _laid_out(values: torch.Tensor, memory: Memory | None) -> torch.Tensor:
    once, strides, offset = layout_of(values, memory)
    if offset == 0 and strides == values.stride():
        return values
    view = values.new_zeros(_extent(once, strides, offset)).as_strided(once.shape, strides, offset)
    return view.copy_(once).expand(values.shape)


def array_of(tensor: torch.Tensor) -> Array:
    """The values as a numpy array: floats that numpy lacks widened to float32, quantised tensors dequantised."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    elif tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    found: Array = tensor.resolve_conj().resolve_neg().numpy()
    return found


# Assembles the arguments of a replayed operator: its tensors, and the other arguments as recorded.

# An element of a list argument: `tensors[1]`.
_ELEMENT: Final = re.compile(r"(\w+)\[(\d+)\]")
_MISSING: Final = object()


def has_unknown(value: Any) -> bool:
    """Whether an argument was recorded by type only: a generator, a script object."""
    if isinstance(value, str):
        return value.startswith("<")
    if isinstance(value, Mapping):
        return any(map(has_unknown, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_unknown, value))


def call_of(
    func: Any, op: OpRecord, tensors: Mapping[str, Any], floating: torch.dtype | None
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments. `tensors` has tensors, or placeholders, by argument (`weight`, `tensors[1]`).

    With `floating`, arguments that are floating-point dtypes become that one. Raises CannotReplayError for a missing one.
    """
    given: dict[str, Any] = {}
    for name, tensor in tensors.items():
        listed = _ELEMENT.fullmatch(name)
        if listed:
            elements = given.setdefault(listed[1], [])
            elements.extend([None] * (int(listed[2]) + 1 - len(elements)))
            elements[int(listed[2])] = tensor
        else:
            given[name] = tensor
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in _arguments_of(func):
        value = given.get(argument.name, _MISSING)
        if value is _MISSING and argument.name in op.arguments:
            value = _decoded(op.arguments[argument.name], argument.kind, floating)
        if value is _MISSING:
            value = _left_out(argument)
        if value is _MISSING:
            raise CannotReplayError(f"the dump does not have the argument {argument.name} of {op.kernel}")
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


class _Argument(NamedTuple):
    """An argument of an operator's schema, of which PyTorch makes new objects each time."""

    name: str
    kind: str
    kwarg_only: bool
    of_schema: Any


@cache
def _arguments_of(func: Any) -> tuple[_Argument, ...]:
    return tuple(
        _Argument(argument.name, str(argument.type), argument.kwarg_only, argument)
        for argument in operator_schema(func).arguments
    )


def _left_out(argument: _Argument) -> Any:
    """The value of an argument that was not given."""
    if argument.of_schema.has_default_value():
        return argument.of_schema.default_value
    if "Optional" in argument.kind:
        return None
    return [] if "List[Tensor]" in argument.kind else _MISSING


def _decoded(value: Any, kind: str, floating: torch.dtype | None) -> Any:
    if isinstance(value, Mapping):
        if "float" in value:
            return float(value["float"])
        if "complex" in value:
            real, imaginary = (_decoded(part, kind, floating) for part in value["complex"])
            return complex(real, imaginary)
    if isinstance(value, list):
        return [_decoded(element, kind, floating) for element in value]
    if isinstance(value, str):
        if value.startswith("torch."):
            found = getattr(torch, value.removeprefix("torch."), None)
            if isinstance(found, torch.dtype):
                return floating if found.is_floating_point and floating is not None else found
            return value if found is None else found
        if "device" in kind.lower():
            return torch.device("cpu")
    return value


# Writes a script of about twenty lines that replays one recorded operator with only PyTorch and numpy.
#
# Small inputs are in the script, as bytes; larger ones are in an npz file of the same name, where dtypes that numpy lacks are
# integers of the same size.

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
        *(("import torch", "") if is_inline else ("import numpy as np", "import torch", "", *_FILED)),
        _function_that_makes_tensors(is_inline=is_inline, is_complex=is_complex),
        "",
        "def run(width=None):",
        *(f"    {name} = {tensor.code(name, 'width=width', is_inline=is_inline)}" for name, tensor in tensors.items()),
        *_call(f"torch.ops.{_path(op.kernel)}", args, kwargs),
        f"    return {{{_results(found, names)}}}",
        "",
        f"recorded = {{{_recorded(recorded, is_inline=is_inline)}}}",
        _END.format(reference=f"torch.{reference}"),
        "",
    ]
    return Script("\n".join(lines), {} if is_inline else {name: tensor.array for name, tensor in stored.items()})


def _recorded(outputs: Mapping[int, _Stored], *, is_inline: bool) -> str:
    return ", ".join(
        f"{slot}: {tensor.code(f'output_{slot}', is_inline=is_inline)}" for slot, tensor in outputs.items()
    )


def _function_that_makes_tensors(*, is_inline: bool, is_complex: bool) -> str:
    return _TENSOR.format(
        what="elements" if is_inline else "name",
        elements=_INLINE_ELEMENTS if is_inline else _FILED_ELEMENTS,
        wide="torch.complex128 if made.is_complex() else width" if is_complex else "width",
        floats="(made.is_floating_point() or made.is_complex())" if is_complex else "made.is_floating_point()",
    )


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


# Replays operators.

_REFUSALS: Final = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)
"""What PyTorch's kernels raise for dtypes or values that they do not support."""


class TorchReplayer(Replayer):
    """Runs operators of PyTorch's dispatcher on CPU tensors."""

    def draws(self, op: OpRecord) -> bool:
        return draws_random(op)

    def run(
        self, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], *, dtype: str = "float64"
    ) -> Replayed:
        func = _replayable(op)
        try:
            outputs = {slot: array_of(tensor) for slot, _, tensor in _called(func, op, inputs, values, dtype)}
        except _REFUSALS as error:
            if dtype == "float64":
                # Some kernels have no float64, such as the recurrent networks of oneDNN.
                return self.run(op, inputs, values, dtype="float32")
            raise CannotReplayError(_refused(op, error)) from error
        return Replayed(outputs, dtype)

    def script(
        self,
        op: OpRecord,
        inputs: Mapping[int, TensorRecord],
        values: Mapping[int, Array],
        outputs: Mapping[int, TensorRecord],
        title: str,
    ) -> Script:
        func = _replayable(op)
        reference = self.run(op, inputs, values).dtype
        every = _all_values(inputs, values)
        try:
            # Only a run shows which outputs there are, and where in the result.
            found = _called(func, op, inputs, every, AS_RECORDED)
            kept = [each for each in found if each[0] not in unspecified_outputs(op.kernel) and each[2].numel()]
            return script_of(func, op, inputs, every, outputs, kept, title=title, reference=reference)
        except _REFUSALS as error:
            raise CannotReplayError(_refused(op, error)) from error


def draws_random(op: OpRecord) -> bool:
    """Whether the operator draws random numbers with these arguments."""
    func = _overload(op.kernel)
    if func is None or torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    # Arguments that had their default values are not recorded.
    given = {
        argument.name: op.arguments.get(argument.name, argument.default_value)
        for argument in operator_schema(func).arguments
    }
    drops = given.get("dropout_p", given.get("p"))
    trains = given.get("train", given.get("training"))
    return drops != 0.0 and trains is not False


_OVERLOADS: Final[dict[str, Any]] = {}
"""The operators that were found by name. Others may be registered later."""


def _overload(kernel: str) -> Any:
    found = _OVERLOADS.get(kernel)
    if found is None:
        namespace, _, rest = kernel.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, namespace), name, None) if namespace and name else None
        found = None if packet is None else getattr(packet, overload or "default", None)
        if found is not None:
            _OVERLOADS[kernel] = found
    return found


def _replayable(op: OpRecord) -> Any:
    """The operator of the dispatcher. Raises CannotReplayError if it cannot be replayed."""
    func = _overload(op.kernel)
    if func is None:
        raise CannotReplayError(f"PyTorch {torch.__version__} has no operator {op.kernel}")
    if draws_random(op):
        raise CannotReplayError(
            f"{op.kernel} draws random numbers, and dumps do not contain the state of the generator"
        )
    unknown = [name for name, value in op.arguments.items() if has_unknown(value)]
    if unknown:
        raise CannotReplayError(
            f"argument {unknown[0]} of {op.kernel} was recorded by type only: {op.arguments[unknown[0]]}"
        )
    return func


def _refused(op: OpRecord, error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return f"PyTorch {torch.__version__} does not run {op.kernel} on these inputs on the CPU: {lines[0]}"


def _all_values(inputs: Mapping[int, TensorRecord], values: Mapping[int, Array]) -> dict[int, Array]:
    """The values, and zeros for memory that was not written before the operator.

    Raises CannotReplayError if other values are missing.
    """
    found = {}
    for slot, record in inputs.items():
        if slot in values:
            found[slot] = values[slot]
        elif record.skip == "allocation" or 0 in record.shape:
            found[slot] = empty_as(record)
        else:
            raise CannotReplayError(f"the dump does not have the values of {record.argument or record.name}")
    return found


def _called(
    func: Any, op: OpRecord, inputs: Mapping[int, TensorRecord], values: Mapping[int, Array], width: str
) -> list[Found]:
    floating: torch.dtype | None = None if width == AS_RECORDED else getattr(torch, width)
    every = _all_values(inputs, values)
    tensors = {record.argument: tensor_of(every[slot], record, floating) for slot, record in inputs.items()}
    args, kwargs = call_of(func, op, tensors, floating)
    with torch.no_grad():
        result = func(*args, **kwargs)
    return tensors_returned(_schema(func), tuple(args), kwargs, result)


@cache
def _schema(func: Any) -> OperatorSchema:
    """The same as `schema_of`, worked out once for each operator."""
    return schema_of(func)


REPLAYER: Final = TorchReplayer()
