"""Kernels: the torch function behind each op kind, and its arguments as torch wants them.

ATen overloads and the custom ops of other libraries resolve to `torch.ops`, `autopar.*` to the
functions of `own_ops` and `random_ops`. Collectives (`comm.*`) and control flow are the executor's
business.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError, near_misses
from autopar.ir.dtypes import TORCH_NAMES
from autopar.ir.emitted import ADD_PRODUCT, INSERT, OFFLOAD
from autopar.ir.expr.expression import Expr
from autopar.ir.memory.kernels import OWN_NAMESPACE, TORCH_NAMESPACES, WRITTEN_OVER, overload
from autopar.ir.ops.dense import ALONE, DENSE, DENSE_ROWS
from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS
from autopar.ir.ops.shape.view import MARKED, RESHAPES
from autopar.ir.program import Arg, DType, Ref
from autopar.ir.rules.foreign import FUNCTIONAL, SEEDED
from autopar.runtime.collectives.host_transfers import offload_over
from autopar.runtime.kernels.attention import ELSEWHERE, by_device
from autopar.runtime.kernels.foreign import foreign, seeded
from autopar.runtime.kernels.leaner import LEANER
from autopar.runtime.kernels.own_ops import OWN_OPS
from autopar.runtime.kernels.products import add_product_
from autopar.runtime.kernels.random_ops import RANDOM_OPS

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, there) for name, there in TORCH_NAMES.items()
}
"""The torch dtype of each dtype name of the IR."""

IR_DTYPES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}
"""The IR's name of each torch dtype."""

Kernel = Callable[..., Any]

_OWN: Mapping[str, Kernel] = {**OWN_OPS, **RANDOM_OPS}


@dataclass(frozen=True, slots=True)
class Signature:
    """How a kernel takes its arguments.

    Attributes:
        positional: Names of the arguments that may be passed by position, in order.
        keyword: Names of those that must be passed by name.
        device: Whether it takes a `device`, as ops that create tensors do. Programs leave it out.
    """

    positional: tuple[str, ...]
    keyword: tuple[str, ...]
    device: bool


@cache
def kernel(kind: str) -> Kernel:
    """Returns the function that computes an op; call it with the op's arguments by name.

    Args:
        kind: `aten.mm.default`, `autopar.to_partial`, or another library's `namespace.op.overload`.

    Raises:
        InvalidInputError: If there is none.
    """
    if kind in _VIEWS:
        return _VIEWS[kind]
    if kind in _OWN:
        return _OWN[kind]
    if kind.startswith(SEEDED):
        return seeded(kernel(kind.removeprefix(SEEDED)))
    if kind.startswith(FUNCTIONAL):
        written = _overload(kind.removeprefix(FUNCTIONAL))
        return foreign(written, written._schema, functional=True)
    found: Kernel = _overload(kind)
    if kind.partition(".")[0] not in TORCH_NAMESPACES:
        return foreign(found, found._schema)  # type: ignore[attr-defined]
    if kind in _STRIDES:
        found = _with_strides(found, _STRIDES[kind])
    if kind in ELSEWHERE:
        found = by_device(found, ELSEWHERE[kind])
    if kind in LEANER:
        found = by_device(LEANER[kind], found)
    if kind in FUSED_STEPS:
        return _flattened(found)
    names = list(signature(kind).positional)
    return _without_masked(found, names.index(MASK)) if MASK in names else found


MASK = "output_mask"
"""The argument of gradients that says which of them are asked for."""


@cache
def signature(kind: str) -> Signature:
    """Returns how the kernel of `kind` takes its arguments.

    Raises:
        InvalidInputError: If there is no such kernel.
    """
    if kind.startswith(SEEDED):
        bare = signature(kind.removeprefix(SEEDED))
        return replace(bare, keyword=(*bare.keyword, "seed", "number"))
    if kind.startswith(FUNCTIONAL):
        return signature(kind.removeprefix(FUNCTIONAL))
    if kind in _OWN:
        parameters = inspect.signature(_OWN[kind]).parameters.values()
        named = [(p.name, p.kind is inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    else:
        named = [(a.name, a.kwarg_only) for a in _overload(kind)._schema.arguments]
    positional = tuple(name for name, keyword_only in named if not keyword_only)
    keyword = tuple(name for name, keyword_only in named if keyword_only)
    return Signature(positional, keyword, "device" in keyword)


def is_fused_step(kind: str) -> bool:
    """Returns whether an op is an optimizer's step in one kernel."""
    return kind in FUSED_STEPS


def _insert(
    whole: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    """Writes a slice; torch's form with `out` writes all of it."""
    torch.ops.aten.slice.Tensor(whole, dim, start, end, step).copy_(src)
    return whole


_IN_PLACE: Mapping[str, Kernel] = {
    OFFLOAD: offload_over,
    INSERT: _insert,
    ADD_PRODUCT: add_product_,
}
"""The in-place forms that torch doesn't have, or only of other ops."""


@cache
def in_place_kernel(kind: str) -> Kernel:
    """Returns the in-place form of an op that has one (see `written_arguments`).

    What fused steps write must be contiguous; gradients may have any strides.
    """
    if kind in _IN_PLACE:
        return _IN_PLACE[kind]
    name, _, overload = kind.rpartition(".")
    if kind in WRITTEN_OVER:
        form = WRITTEN_OVER[kind]
        return _over_first(_overload(f"{name}.{form.variant}"), form.taking)
    found = _overload(f"{name}_.{overload}")
    return _with_dense_gradients(found) if kind in FUSED_STEPS else found


def _over_first(kernel: Kernel, taking: str) -> Kernel:
    """Returns a kernel that writes its result over its first argument."""

    def over(*args: Any) -> Any:
        return kernel(*args, **{taking: args[0]})

    return over


def to_torch(arg: Arg) -> Any:
    """Returns an argument as torch takes it: dtypes as `torch.dtype`, lists as lists.

    Raises:
        TypeError: If it refers to a value or depends on the rank; the caller resolves those.
    """
    if isinstance(arg, DType):
        return TORCH_DTYPES[arg.name]
    if isinstance(arg, tuple):
        return [to_torch(item) for item in arg]
    if isinstance(arg, (Ref, Expr)):
        raise TypeError(f"{arg} must be resolved before it is passed to a kernel")
    return arg


def _overload(kind: str) -> Any:
    found = overload(kind)
    if found is None:
        raise InvalidInputError(_unknown(kind))
    return found


def _unknown(kind: str) -> str:
    name = kind.rpartition(".")[0]
    namespace, _, rest = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace, None), rest, None) if rest else None
    if packet is not None:
        return f"op {kind}: {name} has the overloads {', '.join(packet.overloads())}"
    if namespace in ("comm", "call", "repeat", "barrier"):
        return f"op {kind} is carried out by the executor, not by a kernel"
    if namespace == OWN_NAMESPACE:
        return f"op {kind}: autopar has no such op{near_misses(kind, _OWN)}"
    if namespace == "aten":
        return f"op {kind}: torch {torch.__version__} has no such op"
    return (
        f"op {kind} isn't registered with torch; import the module that defines it, with"
        " --modules MODULE on the command line"
    )


def _without_masked(backward: Kernel, at: int) -> Kernel:
    """Returns a gradient kernel that leaves out the results that `output_mask` rules out.

    An op of a program has no result for them, and some kernels compute them all the same.

    Args:
        backward: The kernel.
        at: The position of the mask among its arguments.
    """

    def masked(*args: Any, **kwargs: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        mask = kwargs[MASK] if MASK in kwargs else args[at]
        results = zip(backward(*args, **kwargs), mask, strict=False)
        found = tuple(result for result, asked in results if asked and result is not None)
        return found[0] if len(found) == 1 else found

    return masked


def _flattened(kernel: Kernel) -> Kernel:
    """Returns a kernel whose results, lists of tensors, become one tuple of all tensors."""

    def flat(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        found = kernel(*args, **_with_rate(kwargs))
        return tuple(tensor for tensors in found for tensor in tensors)

    return flat


def _with_strides(strict: Kernel, dense: Callable[[torch.Tensor], torch.Tensor]) -> Kernel:
    """Returns a kernel that first makes its operands as dense as it needs them."""

    def prepare(value: Any) -> Any:
        if isinstance(value, list):
            return [prepare(item) for item in value]
        return dense(value) if isinstance(value, torch.Tensor) else value

    def prepared(*args: Any, **kwargs: Any) -> Any:
        return strict(
            *map(prepare, args), **{name: prepare(value) for name, value in kwargs.items()}
        )

    return prepared


def _with_dense_gradients(step: Kernel) -> Kernel:
    def stepped(self: list[Any], grads: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        step(self, [gradient.contiguous() for gradient in grads], *args, **_with_rate(kwargs))

    return stepped


def _with_rate(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what a fused step is given, with a learning rate that its kernel takes.

    One in main memory goes along with the kernel; one on an accelerator must have 32 bits.
    """
    rate = given.get("lr")
    if not isinstance(rate, Tensor) or rate.is_cpu:
        return given
    return {**given, "lr": rate.to(torch.float32)}


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous()


def _dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if not tensor.ndim or tensor.stride(-1) == 1 else tensor.contiguous()


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that begins where its memory does."""
    return (
        tensor.contiguous()
        if not tensor.storage_offset()
        else tensor.clone(memory_format=torch.contiguous_format)
    )


_STRIDES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **dict.fromkeys(sorted(DENSE), _dense),
    **dict.fromkeys(sorted(DENSE_ROWS), _dense_rows),
    **dict.fromkeys(sorted(ALONE), _alone),
}
"""What makes operands as dense as kernels need them, which refuse others or read them wrong."""


def _view(self: torch.Tensor, size: list[int]) -> torch.Tensor:
    return self.reshape(size)


def _reshape(self: torch.Tensor, shape: list[int]) -> torch.Tensor:
    return self.reshape(shape)


_RESHAPING: Mapping[str, Kernel] = {"size": _view, "shape": _reshape}
"""By the argument with the sizes."""

# Values are contiguous by contract, but kernels may leave a result in other strides (a permute, a
# slice), where torch's own `view` refuses. A conjugate that is only marked as such would lose the
# mark in a collective.
_VIEWS: Mapping[str, Kernel] = {
    **{kind: _RESHAPING[sizes] for kind, sizes in RESHAPES.items()},
    **{kind: overload(computed) for kind, computed in MARKED.items()},
}
