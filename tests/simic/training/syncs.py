"""Counts what makes the host wait for a device: reads of tensors' values."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS = {
    torch.Tensor.item: "item",
    torch.Tensor.cpu: "cpu",
    torch.Tensor.tolist: "tolist",
    torch.Tensor.numpy: "numpy",
    torch.Tensor.__bool__: "bool",
    torch.Tensor.__float__: "float",
    torch.Tensor.__int__: "int",
    torch.Tensor.__index__: "index",
    torch.Tensor.nonzero: "nonzero",
    torch.Tensor.__array__: "array",
}


class _Calls(TorchFunctionMode):
    """Sees what Python code asks of tensors."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            self._seen[READS[func]] += 1
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):
    """Sees reads of single values that torch's own code makes."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self._seen["scalar"] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_reads() -> Iterator[Counter[str]]:
    """Count the reads of a block on this thread."""
    seen: Counter[str] = Counter()
    with ExitStack() as stack:
        stack.enter_context(_Calls(seen))
        stack.enter_context(_Kernels(seen))
        yield seen
