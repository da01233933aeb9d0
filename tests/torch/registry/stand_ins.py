"""CPU kernels for operators that need several GPUs (`symm_mem`), so that a capture of these can be tested on the host.

The kernels compute other numbers. They do what a capture could change: each writes what its schema says that it writes, by other operators,
and returns what its schema says that it returns. Operators that take an object of such memory cannot be called here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._symmetric_memory  # registers operators
from torch import Tensor

from tests.torch.registry.states import schema_of

NAMESPACE = "symm_mem"


def give_kernels() -> torch.library.Library:
    """Register kernels for the operators that have none on the host, for as long as the result lives."""
    library = torch.library.Library(NAMESPACE, "IMPL")
    for name in sorted(map(str, torch._C._dispatch_get_all_op_names())):
        if name.startswith(f"{NAMESPACE}::") and not _has_kernel(name):
            library.impl(name.partition("::")[2], _kernel(schema_of(name)), "CPU")
    return library


def _has_kernel(name: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(name, key) for key in ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"))


def _kernel(schema: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
        tensors = [value for value in given.values() if isinstance(value, Tensor)]
        written: dict[str, Any] = {}
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = given[argument.name]
                for each in value if isinstance(value, list) else [value]:
                    each.add_(1)
                written.update(dict.fromkeys(argument.alias_info.before_set, value))
        results = []
        for value in schema.returns:
            if value.alias_info is not None:
                (alias,) = value.alias_info.before_set
                results.append(written[alias])
            else:
                results.append([tensors[0] + 1, tensors[0] + 2] if "List" in str(value.type) else tensors[0] + 1)
        return results[0] if len(results) == 1 else tuple(results) or None

    return run
