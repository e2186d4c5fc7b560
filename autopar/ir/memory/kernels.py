"""What kernels do with memory: which results may be views, and which operands can be written to.

The emitter frees and overwrites by these facts, and the memory that a program needs is predicted by
them. They are torch's schemas, and what the runtime does in a way of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from autopar.ir.emitted import ADD_PRODUCT, INSERT, OFFLOAD, OVER
from autopar.ir.memory.transfers import STARTED
from autopar.ir.ops.dense import STRICT
from autopar.ir.ops.elementwise.pointwise import OVER_FIRST
from autopar.ir.ops.products.attention import ATTENTION
from autopar.ir.ops.products.attention_backward import ATTENTION_BACKWARD
from autopar.ir.ops.reduce.softmax import OVER_GRADIENTS
from autopar.ir.ops.shape.view import MARKED, RESHAPES, UNSAFE
from autopar.ir.ops.table import Over

SHORT_SUM_BYTES = 1 << 20
"""Bytes of all members' tensors up to which gloo gathers them faster than it reduces them.

Measured by two and four processes of one host; from 4 MB on, reducing is faster."""

SHORT_GATHER_BYTES = 1 << 14
"""Bytes of all members' tensors up to which a gloo rank sends each member a copy of its own.

Measured by two and four processes of one host, that takes 0.6 to 0.8 of the CPU seconds of gloo's
gather. Longer ones would gain too, up to a few MiB, but copies take memory."""

DRAWN_AT_ONCE = 1 << 16
"""Random elements that are drawn at a time on a CPU, so that they stay in its cache."""

TORCH_NAMESPACES = ("aten", "prims", "quantized_decomposed")
"""The namespaces of torch's own ops."""

OWN_NAMESPACE = "autopar"
"""The namespace of ours."""


WRITTEN_OVER: Mapping[str, Over] = {**OVER_FIRST, **OVER_GRADIENTS}
"""Ops whose result may be written over an operand, though they have no in-place form."""


_WRITTEN: Mapping[str, str] = {OFFLOAD: OVER, INSERT: "self", ADD_PRODUCT: "self"}
"""The argument that the in-place form of ours of an op writes to."""


_IN_OWN_MEMORY = frozenset((*STARTED, ADD_PRODUCT, ATTENTION, ATTENTION_BACKWARD))
"""Ops of ours whose results are no views."""


@cache
def may_alias(kind: str) -> bool:
    """Returns whether a result of an op may share memory with an operand.

    Kernels of torch say so in their schemas, but for composite ones, which may return an operand
    as it is. Others, and those that nobody knows, might do anything.
    """
    if kind in _IN_OWN_MEMORY:
        return False
    views = kind in RESHAPES or kind in MARKED or kind in UNSAFE
    if views or kind.partition(".")[0] not in TORCH_NAMESPACES:
        return True
    found = overload(kind)
    if found is None:
        return True
    returned = any(each.alias_info is not None for each in found._schema.returns)
    return returned or bool(found._can_decompose())


@cache
def written_arguments(kind: str) -> tuple[str, ...]:
    """Returns the arguments that the in-place form of an op writes its results into, in order.

    Nothing if there is no such form, as `aten.add_.Tensor` is of `aten.add.Tensor`.
    """
    if kind in _WRITTEN:
        return (_WRITTEN[kind],)
    if kind in WRITTEN_OVER:
        return (WRITTEN_OVER[kind].operand,)
    views = kind in RESHAPES or kind in MARKED
    if views or kind in STRICT or not kind.startswith("aten."):
        return ()
    name, _, rest = kind.rpartition(".")
    form = overload(f"{name}_.{rest}")
    if form is None:
        return ()
    arguments = form._schema.arguments
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


def overload(kind: str) -> Any:
    """Returns torch's op of a kind, `namespace.name.overload`; None if it has no such op."""
    import torch  # the rest of the IR does without

    namespace, _, rest = kind.partition(".")
    name, _, variant = rest.rpartition(".")
    library = getattr(torch.ops, namespace, None) if namespace and name else None
    packet = getattr(library, name, None)
    return getattr(packet, variant, None) if packet is not None else None
