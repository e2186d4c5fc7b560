"""Whether captured graphs compute the same at sizes: by their ops, but for those that do nothing.

Of a size that code decides by, a graph has what code does at the example's. It is right at another
size as well, if what the code does there makes the same graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from autopar.frontend.lower.open_sizes import OpenArgument, OpenSizes
from autopar.frontend.torch.capture.joint import Joint
from autopar.ir.expr.at_sizes import Sizes, as_coords
from autopar.ir.expr.expression import substitute

aten = torch.ops.aten

_COPIES = frozenset((aten.alias.default, aten.clone.default, aten.detach.default))
"""Ops whose result is their operand, for values that nobody writes to."""

_PARTS = frozenset((aten.expand.default, aten.slice.Tensor))
"""Ops whose result is their operand, if it has its shape."""

_VIEWS = frozenset((aten.reshape.default, aten.view.default, aten._unsafe_view.default))
"""Ops whose result has the elements of their operand, in their order."""

CAUSAL = "is_causal"
"""The argument of attention by which a row sees those up to itself."""


def are_alike(one: Joint, its: OpenSizes, other: Joint, others: OpenSizes, sizes: Sizes) -> bool:
    """Returns whether two graphs of the same code compute the same.

    Args:
        one: A graph.
        its: The open sizes in it.
        other: Another one.
        others: The open sizes in that.
        sizes: What some sizes are, by name; the others may be any.
    """
    return bool(_Form(its, sizes).of(one) == _Form(others, sizes).of(other))


@dataclass
class _Form:
    """What two graphs have in common that compute the same.

    Args:
        sizes: The open sizes in a graph.
        known: What some of them are, by name.
    """

    sizes: OpenSizes
    known: Sizes
    _numbers: dict[fx.Node, Any] = field(default_factory=dict)
    _ops: list[Any] = field(default_factory=list)

    def of(self, joint: Joint) -> Any:
        for node in joint.graph.nodes:
            self._add(node, joint)
        assumed = [(self._numbers[each.node], str(each.assumption)) for each in joint.assumed]
        found = (joint.structure.labels, joint.structure.plain, assumed, dict(joint.selected))
        return self._ops, found, *map(self._named, _places(joint))

    def _named(self, nodes: Mapping[Any, Any]) -> dict[Any, Any]:
        return {name: self._plain(each) for name, each in nodes.items()}

    def _add(self, node: fx.Node, joint: Joint) -> None:
        value = self._plain(node.meta.get("val"))
        seen = self._seen(node, value)
        if seen is not None:
            self._numbers[node] = seen
            return
        self._numbers[node] = len(self._ops)
        if node in joint.constants:
            self._ops.append(("constant", _content(joint.constants[node]), value))
        elif node.op == "placeholder":
            self._ops.append(("placeholder", None, value))
        else:
            target = node.target if node.op == "call_function" else node.op
            self._ops.append((target, self._plain(self._arguments(node)), value))

    def _seen(self, node: fx.Node, value: Any) -> Any:
        """Returns what is there already of which a node's value is a view; None if it is new."""
        if node.target not in _COPIES | _PARTS | _VIEWS or not isinstance(node.args[0], fx.Node):
            return None
        operand = self._numbers[node.args[0]]
        if node.target in _COPIES or value == self._plain(node.args[0].meta["val"]):
            return operand
        if node.target in _PARTS:
            return None
        base = operand[1] if isinstance(operand, tuple) else operand
        return base if self._ops[base][-1] == value else ("view", base, value)

    def _arguments(self, node: fx.Node) -> dict[Any, Any]:
        """Returns the arguments of an op by name; none is causal that needn't be."""
        schema = getattr(node.target, "_schema", None)
        known = schema.arguments if schema else ()
        defaults = {each.name: each.default_value for each in known if each.has_default_value()}
        names = [each.name for each in known] or range(len(node.args))
        found = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
        if found.get(CAUSAL) and self._sees_all(found):
            found[CAUSAL] = False
        return found

    def _sees_all(self, arguments: Mapping[Any, Any]) -> bool:
        """Whether rows of attention see the same with a causal mask: one row, of one."""
        nodes = [each for each in arguments.values() if isinstance(each, fx.Node)]
        tensors = [each.meta["val"] for each in nodes if isinstance(each.meta["val"], Tensor)]
        lengths = {self._plain(each.shape[-2]) for each in tensors if each.ndim == 4}
        return lengths == {self._plain(1)}

    def _plain(self, value: Any) -> Any:
        """Returns what is compared of an argument, or of a result."""
        if isinstance(value, fx.Node):
            return ("node", self._numbers[value])
        if isinstance(value, OpenArgument):
            return self._plain(value.size)
        if isinstance(value, torch.SymInt):
            return str(substitute(self.sizes.expr(value), as_coords(self.known)))
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, Tensor):
            return ("tensor", str(value.dtype), tuple(map(self._plain, value.shape)))
        if isinstance(value, (list, tuple)):
            return tuple(map(self._plain, value))
        if isinstance(value, Mapping):
            return {key: self._plain(each) for key, each in value.items()}
        return value if isinstance(value, (bool, str, type(None))) else repr(value)


def _places(joint: Joint) -> tuple[Mapping[Any, Any], ...]:
    """Returns what the nodes of a graph are."""
    by_name = ({name: node} for node, name in (*joint.stored.items(), *joint.batch.items()))
    inputs: dict[Any, Any] = {}
    for each in by_name:
        inputs.update(each)
    return (
        inputs,
        joint.tangents,
        dict(enumerate(joint.outputs)),
        joint.gradients,
        joint.batch_gradients,
        joint.written,
        joint.written_tangents,
        joint.updates,
        joint.present,
    )


def _content(constant: Tensor) -> Any:
    return str(constant.dtype), tuple(constant.shape), constant.flatten().tolist()
