"""Which plain values of an example a program doesn't depend on: it is the same without them.

A batch may have names or numbers of samples beside its tensors, which no code reads. The model is
captured again with stand-ins in their place, which tell what is done with them. They answer truly
of what class they are, but for `type(x)`; any other question counts as reading, and so does all
that fails with them or makes another program.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch.utils import _pytree as pytree

from autopar.frontend.torch.step.batch import key_of
from autopar.ir.leaves import is_plain_list, label_of_path
from autopar.ir.program import Program

_KINDS = (str, int, float, list, tuple)
"""The types of values that are looked at: a flag decides something, or it wouldn't be given."""

_LEFT = frozenset(
    f"__{name}__"
    for name in (
        *("new", "init", "class", "getattribute", "init_subclass", "subclasshook"),
        *("doc", "module", "dict", "slots", "class_getitem"),
    )
)


class _Read(Exception):
    """A stand-in was read."""


class _StandIn:
    """Stands for a value that isn't to be read."""

    def __init__(self, kind: type, read: Callable[[], object]) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "read", read)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return object.__getattribute__(self, "kind")
        return _read(self)


def _read(stand_in: _StandIn, *_: Any, **__: Any) -> Any:
    object.__getattribute__(stand_in, "read")()
    raise _Read


for _name in {name for kind in (*_KINDS, dict) for name in dir(kind)} - _LEFT:
    if _name.startswith("__"):
        setattr(_StandIn, _name, _read)
for _name in ("__fspath__", "__call__", "__next__", "__enter__", "__matmul__", "__rmatmul__"):
    setattr(_StandIn, _name, _read)


def unread(
    batch: Any, labels: Iterable[str], program: Program, capture: Callable[[Any], Program]
) -> dict[str, type]:
    """Returns the plain values of a batch on which a program doesn't depend.

    Args:
        batch: The example.
        labels: Those of its plain values, as `autopar.ir.leaves` calls them.
        program: What was captured of it.
        capture: Captures it again, of another batch.

    Returns:
        Their types, by label.
    """
    asked = set(labels)
    paths, spec = pytree.tree_flatten_with_path(batch, is_leaf=is_plain_list)
    places = [label_of_path(tuple(map(key_of, path))) for path, _ in paths]
    pairs = list(zip(places, (leaf for _, leaf in paths), strict=True))
    kinds = {label: type(leaf) for label, leaf in pairs if label in asked and type(leaf) in _KINDS}
    while kinds:
        read: set[str] = set()
        leaves = [
            _StandIn(kinds[label], partial(read.add, label)) if label in kinds else leaf
            for label, leaf in pairs
        ]
        same = _captured(capture, pytree.tree_unflatten(leaves, spec)) == program
        if not read:
            return kinds if same else {}
        kinds = {label: kind for label, kind in kinds.items() if label not in read}
    return {}


def _captured(capture: Callable[[Any], Program], batch: Any) -> Program | None:
    """Returns the program of a batch; None if there is none, as where stand-ins are refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return capture(batch)
    except Exception:
        return None
