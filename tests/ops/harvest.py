"""Samples of ATen ops as PyTorch's own operator database calls them, forward and backward."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.frontend.lower.spelling import IR_DTYPES
from tests.ops.sample import Sample

SAMPLES_PER_OP = 8
"""Calls of one entry of the database."""

MOST_ELEMENTS = 4096
"""Of one operand. Larger ones cost time and show nothing else."""

_STORAGE = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


def harvest(names: Iterable[str] | None = None, per_kind: int = 4) -> dict[str, list[Sample]]:
    """Returns samples by op kind, no two of a kind alike in dtypes, ranks and arguments.

    Args:
        names: Entries of the database; all of them if None.
        per_kind: How many samples of a kind to keep.
    """
    recorder = _Recorder(per_kind)
    for call in _calls(set(names) if names is not None else None):
        recorder.watch(call)
    return dict(sorted(recorder.found.items()))


def _calls(names: set[str] | None) -> Iterator[Callable[[], None]]:
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if names is not None and info.name not in names:
            continue
        random.seed(0)
        torch.manual_seed(0)
        dtype = next((d for d in _DTYPES if d in info.dtypes), None)
        if dtype is None:
            continue
        gradient = dtype == torch.float64 and info.supports_autograd
        try:
            inputs = info.sample_inputs("cpu", dtype, requires_grad=gradient)
            for sample in itertools.islice(inputs, SAMPLES_PER_OP):
                yield _call(info, sample, gradient)
        except (RuntimeError, ImportError, NotImplementedError):
            continue  # needs a package or a device that isn't there


_DTYPES = (torch.float64, torch.float32, torch.int64, torch.bool, torch.complex128)


def _call(info: Any, sample: Any, gradient: bool) -> Callable[[], None]:
    def run() -> None:
        found = info.op(sample.input, *sample.args, **sample.kwargs)
        results = [
            result
            for result in pytree.tree_leaves(found)
            if isinstance(result, Tensor) and result.requires_grad
        ]
        if gradient and results:
            cotangents = [torch.rand_like(result) for result in results]
            torch.autograd.backward(results, cotangents)

    return run


class _Recorder(TorchDispatchMode):
    """Keeps the calls that a function makes."""

    def __init__(self, per_kind: int) -> None:
        super().__init__()
        self.per_kind = per_kind
        self.found: dict[str, list[Sample]] = {}
        self.seen: set[object] = set()

    def watch(self, call: Callable[[], None]) -> None:
        """Runs a function. One that fails has still made its calls."""
        with self:
            try:
                call()
            except Exception:
                return

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func._schema.is_mutable:
            self._keep(func, args, kwargs or {}, result)
        return result

    def _keep(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object
    ) -> None:
        kind = f"aten.{func._opname}.{func._overloadname}"
        kept = self.found.get(kind, [])
        if len(kept) == self.per_kind or not _is_dense(pytree.tree_leaves(result)):
            return
        given = _arguments(func, args, kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
        if not _is_dense(tensors) or not _is_static(given) or max(_counts(tensors)) < 2:
            return
        key = (kind, _signature(given))
        if key in self.seen:
            return
        self.seen.add(key)
        copied = pytree.tree_map(_copy, given)
        self.found.setdefault(kind, []).append(Sample(kind, copied))


def _arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments by name, without those that equal their default."""
    given: dict[str, Any] = {}
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in _STORAGE:
            continue
        if position < len(args) and not argument.kwarg_only:
            value = args[position]
        elif argument.name in kwargs:
            value = kwargs[argument.name]
        else:
            continue
        default = argument.default_value if argument.has_default_value() else _NONE
        if isinstance(value, Tensor) or type(value) is not type(default) or value != default:
            given[argument.name] = value
    return given


_NONE = object()


def _is_dense(leaves: Iterable[object]) -> bool:
    """Whether tensors, of which there is at least one, are such as programs hold."""
    tensors = [leaf for leaf in leaves if leaf is not None]
    return bool(tensors) and all(
        isinstance(leaf, Tensor)
        and leaf.layout == torch.strided
        and leaf.dtype in IR_DTYPES
        and leaf.device.type == "cpu"
        and not leaf.is_quantized
        and leaf.numel() <= MOST_ELEMENTS
        for leaf in tensors
    )


def _is_static(given: Mapping[str, Any]) -> bool:
    return all(
        leaf is None
        or isinstance(leaf, (Tensor, bool, int, float, complex, str))
        or leaf in IR_DTYPES
        for leaf in pytree.tree_leaves(given)
    )


def _counts(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def _signature(given: Mapping[str, Any]) -> object:
    """Returns what makes two calls alike: types and ranks of tensors, and the other arguments."""
    return tuple(
        (name, _mark(leaf)) for name, value in given.items() for leaf in pytree.tree_leaves(value)
    )


def _mark(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.dtype, tuple(min(size, 2) for size in leaf.shape)
    return leaf if isinstance(leaf, (bool, str, type(None))) else type(leaf)


def _copy(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
