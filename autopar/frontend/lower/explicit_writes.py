"""Writes that torch's functionalization misses: here the new contents become results.

Batch normalization writes running statistics behind its schema's back. Fused steps of optimizers
say that they write, but functionalization fails on the list that is empty without `amsgrad`.
Both have functional forms. What is read after the write is then what those return.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autopar.base.errors import InvalidInputError
from autopar.frontend.lower.writes import memory_of
from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_STATISTICS = ("running_mean", "running_var")
_NORMALIZING = ("aten::native_batch_norm", "aten::batch_norm")
_ALIASING = ("aten::alias", "aten::detach")
"""Views of all of a tensor, element by element."""


@dataclass(frozen=True, slots=True)
class _Form:
    """The functional form of an op that writes.

    Attributes:
        target: The op.
        given: Its arguments by name.
        results: What it returns, as metadata.
        written: Of each tensor written to, where among the results its new content is.
        first: Whether the first of several results stands for the single one of the original.
    """

    target: Any
    given: Mapping[str, Any]
    results: tuple[Any, ...]
    written: Mapping[fx.Node, tuple[int, ...]]
    first: bool = False


def make_writes_explicit(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Replaces ops that write where torch doesn't see it by their functional forms, in place.

    Returns:
        The last content of what they write to, by the node that held it before.

    Raises:
        InvalidInputError: If a view of what they write to is read afterwards.
    """
    last: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        form = _functional(node)
        if form is None:
            continue
        for old, new in _replace(graph, node, form).items():
            last[old] = new
            last.update({first: new for first, held in last.items() if held is old})
    return last


def _functional(node: fx.Node) -> _Form | None:
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    name = node.target._schema.name
    if name in _NORMALIZING:
        return _batch_norm(node, given)
    kind = f"aten.{name.removeprefix('aten::').removesuffix('_')}.{node.target._overloadname}"
    return _step(node.target, given) if name.endswith("_") and kind in FUSED_STEPS else None


def _batch_norm(node: fx.Node, given: dict[str, Any]) -> _Form | None:
    if not given.get("training") or given.get("running_mean") is None:
        return None
    given.pop("cudnn_enabled", None)
    statistics = [given[name] for name in _STATISTICS]
    contents = [it.meta["val"] for it in statistics]
    single = isinstance(node.meta["val"], torch.Tensor)
    own = [node.meta["val"], *contents] if single else list(node.meta["val"])
    written = {it: (at,) for at, it in enumerate(statistics, 3)}
    return _Form(_BATCH_NORM, given, (*own, *contents), written, single)


def _step(target: torch._ops.OpOverload, given: Mapping[str, Any]) -> _Form:
    packet = getattr(torch.ops.aten, target._opname.removesuffix("_"))
    lists = [given[argument.name] for argument in target._schema.arguments if argument.is_write]
    results = tuple([it.meta["val"] for it in nodes] for nodes in lists)
    written = {it: (at, entry) for at, nodes in enumerate(lists) for entry, it in enumerate(nodes)}
    return _Form(getattr(packet, target._overloadname), given, results, written)


def _replace(graph: fx.Graph, node: fx.Node, form: _Form) -> dict[fx.Node, fx.Node]:
    """Puts the functional form in the place of an op. Returns the contents by what they replace."""
    with graph.inserting_before(node):
        new = graph.call_function(form.target, (), dict(form.given))
        new.meta = {**node.meta, "val": form.results}
        single = _pick(graph, new, (0,)) if form.first else new
        contents = {old: _pick(graph, new, path) for old, path in form.written.items()}
    later = _later(graph, node)
    for old, content in contents.items():
        for alias, user in _readers(graph, old, later):
            if not _is_whole(alias, old):
                raise InvalidInputError(
                    f"can't lower the exported graph: {node.name} writes to {old.name}, of which"
                    f" {user.name} later reads the view {alias.name}; read {old.name} itself"
                )
            user.replace_input_with(alias, content)
    node.replace_all_uses_with(single)
    graph.erase_node(node)
    return contents


def _pick(graph: fx.Graph, node: fx.Node, path: tuple[int, ...]) -> fx.Node:
    for position in path:
        value = node.meta["val"][position]
        node = graph.call_function(operator.getitem, (node, position))
        node.meta["val"] = value
    return node


def _later(graph: fx.Graph, node: fx.Node) -> frozenset[fx.Node]:
    nodes = list(graph.nodes)
    return frozenset(nodes[nodes.index(node) + 1 :])


def _readers(
    graph: fx.Graph, written: fx.Node, later: frozenset[fx.Node]
) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yields who reads the memory of a node later, and through which node made before."""
    memory = memory_of(written)
    for alias in graph.nodes:
        if alias not in later and memory_of(alias) is memory:
            yield from ((alias, user) for user in list(alias.users) if user in later)


def _is_whole(alias: fx.Node, written: fx.Node) -> bool:
    """Whether two views of one memory show the same elements in the same way."""
    return _unaliased(alias) is _unaliased(written)


def _unaliased(node: fx.Node) -> fx.Node:
    while isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _ALIASING:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node
