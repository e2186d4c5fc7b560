"""Ops that write to their operands, as exported graphs hold them.

Functionalization leaves a custom op that mutates as a call of `auto_functionalized` (or its second
version): what the op takes, and as results the op's own and the new content of what it writes to.
Here it becomes an op of kind `autopar.functional.KIND`, which works on copies. Where it writes to a
slice of a tensor, the slice is taken before and put back after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autopar.base.errors import Loc
from autopar.ir.program import Arg, Op, Ref, refs
from autopar.ir.rules.foreign import FUNCTIONAL

_NAMES = ("auto_functionalized", "auto_functionalized_v2")


class Unwritable(Exception):
    """An op writes to something that a program can't express; the message says what."""


@dataclass(frozen=True, slots=True)
class _Target:
    """Something that an op writes to.

    Attributes:
        base: The tensor, by its position among those that change.
        cut: The slice of it: dimension, start, end; None for all of it.
    """

    base: int
    cut: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the lowering of a node needs from that of its graph.

    Attributes:
        results: The values of its results that are tensors.
        arg: (argument, its name) -> the argument as a program holds it.
        add: (name, the value it is like, dimension, size) -> a new value of that size there.
        loc: Where the node comes from.
    """

    results: Sequence[str]
    arg: Callable[[Any, str], Arg]
    add: Callable[[str, str, int, int], str]
    loc: Loc


def is_functionalized(node: fx.Node) -> bool:
    """Tells whether a node calls an op that writes, through its functional form."""
    return getattr(node.target, "_name", "") in _NAMES


def lower_functionalized(node: fx.Node, around: Surroundings) -> list[Op]:
    """Returns the ops that a call of an op that writes becomes.

    Raises:
        Unwritable: If it writes to a view that isn't a slice, or twice to one tensor.
    """
    overload = node.args[0]
    assert isinstance(overload, torch._ops.OpOverload)
    kind = f"{overload.namespace}.{overload._opname}.{overload._overloadname}"
    schema = [argument for argument in overload._schema.arguments if argument.name is not None]
    written = [argument.name for argument in schema if argument.is_write]
    given = [name for name in written if node.kwargs.get(name) is not None]
    bases = node.kwargs.get("_all_bases", [node.kwargs[name] for name in given])
    assert isinstance(bases, (list, tuple))
    targets = {name: list(_targets(node.kwargs, name, given)) for name in written}
    flat = [target for found in targets.values() for target in found if target is not None]
    if len({target.base for target in flat}) < len(flat):
        raise Unwritable(f"{kind} writes to one tensor through several arguments; copy it first")
    names = [ref.name for base in bases for ref in refs(around.arg(base, "what it writes to"))]
    own, contents = around.results[: -len(bases)], around.results[-len(bases) :]
    call = _Call(around, names, contents)
    args: list[tuple[str, Arg]] = []
    for argument in schema:
        if argument.is_write:
            found = [call.operand(target) for target in targets[argument.name]]
            several = f"_{argument.name}_length" in node.kwargs
            args.append((argument.name, tuple(found) if several else found[0]))
        elif _is_given(argument, node.kwargs):
            args.append((argument.name, around.arg(node.kwargs[argument.name], argument.name)))
    results = (*own, *call.results)
    op = Op(f"{FUNCTIONAL}{kind}", tuple(args), results, loc=around.loc)
    return [*call.before, op, *call.after]


def _is_given(argument: Any, kwargs: Mapping[str, Any]) -> bool:
    absent = kwargs.get(argument.name) is None and argument.has_default_value()
    return argument.name in kwargs and not absent


class _Call:
    """Collects the slices around an op."""

    def __init__(self, around: Surroundings, names: Sequence[str], contents: Sequence[str]) -> None:
        self.around = around
        self.names = names
        self.contents = contents
        self.before: list[Op] = []
        self.after: list[Op] = []
        self.results: list[str] = []

    def operand(self, target: _Target | None) -> Arg:
        """Returns what the op reads for a target, and notes where its new content goes."""
        if target is None:
            return None
        name, content = self.names[target.base], self.contents[target.base]
        if target.cut is None:
            self.results.append(content)
            return Ref(name)
        dim, start, end = target.cut
        part = self.around.add(f"{name}.part", name, dim, end - start)
        changed = self.around.add(f"{content}.part", name, dim, end - start)
        where: tuple[tuple[str, Arg], ...] = (("dim", dim), ("start", start), ("end", end))
        loc = self.around.loc
        self.before.append(Op("aten.slice.Tensor", (("self", Ref(name)), *where), (part,), loc=loc))
        put = (("self", Ref(name)), ("src", Ref(changed)), *where)
        self.after.append(Op("aten.slice_scatter.default", put, (content,), loc=loc))
        self.results.append(changed)
        return Ref(part)


def _targets(
    kwargs: Mapping[str, Any], name: str, given: Sequence[str]
) -> Iterator[_Target | None]:
    """Yields what an argument writes to, one for each tensor of a list.

    The first version of `auto_functionalized` has it as an operand, one of those `given`.
    """
    if "_all_bases" not in kwargs:
        if isinstance(kwargs.get(name), (list, tuple)):
            raise Unwritable(
                "it writes to a list of tensors, which only the second version of torch's"
                " auto_functionalized can say; leave enable_auto_functionalized_v2 on"
            )
        yield _Target(given.index(name)) if name in given else None
        return
    count = kwargs.get(f"_{name}_length")
    for prefix in [f"_{name}"] if count is None else [f"_{name}_{at}" for at in range(count)]:
        yield _target(kwargs, prefix)


def _target(kwargs: Mapping[str, Any], prefix: str) -> _Target | None:
    base = kwargs.get(f"{prefix}_base_index")
    if base is None:
        return None
    if f"{prefix}_stride" in kwargs:
        raise Unwritable(
            "it writes to a view that is no slice; give it a tensor of its own, and copy the"
            " result to where it belongs"
        )
    if f"{prefix}_slice_dim" not in kwargs:
        return _Target(base)
    dim, start, end = (kwargs[f"{prefix}_slice_{what}"] for what in ("dim", "start", "end"))
    return _Target(base, (dim, start, end))
