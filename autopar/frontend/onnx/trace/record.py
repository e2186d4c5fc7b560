"""Runs nodes at import time: at once if all they read is known, else on fake tensors.

Fake tensors stand for whatever depends on the program's inputs. They give shapes and dtypes, tell
what is known, and find every node that can't be expressed; `trace` records what is done to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from autopar.frontend.lower.open_sizes import OpenArgument, is_static
from autopar.frontend.lower.spelling import IR_DTYPES
from autopar.frontend.onnx.model.dtypes import ElementType, element_type_of
from autopar.frontend.onnx.model.problems import Problems
from autopar.frontend.onnx.trace.node import (
    Array,
    Node,
    Refused,
    Undecided,
    as_array,
    to_bind,
    to_fix,
)
from autopar.frontend.onnx.trace.sizing import FEW_CONVERTED, Sizing
from autopar.frontend.onnx.trace.trace import Trace, stand_in
from autopar.frontend.onnx.trace.values import (
    Failed,
    Known,
    Leaf,
    Recipe,
    Sized,
    StoredTensor,
    TensorTree,
    Traced,
    Translation,
    Value,
    flatten,
    leaves,
)
from autopar.ir.expr.expression import IntExpr

LARGEST_KNOWN = 2 * 2**30
"""Bytes of the largest tensor that follows from constants, or from shapes alone."""
LARGEST_COMPUTED = 2**29
"""Bytes of results that are computed at import time and are larger than what they follow from."""
LARGEST_GROWTH = 16
"""How much larger than its weights the result of a computation on weights may be."""
LARGEST_TENSOR = 2**44
"""Bytes of the largest tensor in a program: more is a mistake."""
SMALL = 64 * 2**10
"""Bytes up to which a known result is always computed at import time."""
FEW_ELEMENTS = 4096
"""Elements of the inputs up to which a known result is computed without looking at its shape."""
_OUTSIDE = "end the model before it, and do the rest outside of the program"
_OTHER_TYPE = "export the model with another type; of float8, e4m3fn and e5m2 are supported"


@dataclass
class Recorder:
    """Records the nodes of one model.

    Attributes:
        problems: Where nodes that can't be expressed are noted.
        stored: The known tensors that the program reads, in order: weights and constants.
        names: The ONNX name of what is computed.
        trace: What was recorded.
        sizing: What nodes make of open sizes.
    """

    problems: Problems
    stored: list[StoredTensor] = field(default_factory=list)
    names: dict[fx.Node, str] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    _places: dict[Known, fx.Node] = field(default_factory=dict)
    _given: set[fx.Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sizing = Sizing(self.trace)

    def add_input(self, kind: ElementType, shape: Sequence[IntExpr]) -> Traced:
        """Returns the value of a program input."""
        sizes = [self.trace.sizes.symbolic(size) for size in shape]
        with self.trace.mode:
            fake = torch.empty(sizes, dtype=kind.carrier)
        place = self.trace.node_of(fake)
        self._given.add(place)
        return Traced(fake, place, kind)

    def run(
        self, node: Node, translation: Translation, inputs: Sequence[Value], outputs: int
    ) -> list[Value]:
        """Runs a node, or records it.

        Returns:
            The values of its outputs; `Failed` ones, after noting why, if it can't be expressed.
        """
        if any(isinstance(leaf, Failed) for value in inputs for leaf in leaves(value)):
            return [Failed()] * outputs
        try:
            with torch.no_grad():
                found = self._run(node, translation, list(inputs))
        except Refused as refusal:
            self.refuse(node, refusal)
        except GuardOnDataDependentSymNode as error:
            condition, names = self.trace.sizes.told(error.cond)
            what = f"what it does depends on the size of {names}"
            if isinstance(error.cond, sympy.Expr):
                self.problems.add(node.label, f"{what}: each {condition}", to_fix(names))
            else:
                self.problems.add(node.label, f"{what}, whether {condition}", to_bind(names))
        except (DataDependentOutputException, DynamicOutputShapeException):
            what = "its result has a shape or a choice that depends on the program's inputs"
            self.problems.add(node.label, what, _OUTSIDE)
        except Exception as error:  # torch raises whatever it likes on a node that makes no sense
            self.problems.add(node.label, f"torch can't run it: {_first_line(error)}")
        else:
            return [*found, *[None] * (outputs - len(found))]
        return [Failed()] * outputs

    def refuse(self, node: Node, refusal: Refused) -> None:
        """Notes that a node can't be expressed."""
        sizes, advice = self.trace.sizes, refusal.advice
        if isinstance(refusal, Undecided):
            advise = to_bind if refusal.by_range else to_fix
            advice = advise(", ".join(sizes.names(refusal.sizes)))
        self.problems.add(node.label, sizes.named(str(refusal)), advice)

    def content(self, value: Value) -> torch.Tensor | None:
        """Returns the content of a value, computed now if that is possible; else None.

        Raises:
            Refused: If it is too large, or can't be computed.
        """
        if isinstance(value, Known):
            return value.tensor
        if not isinstance(value, Traced) or value.recipe is None:
            return None
        done: _Contents = {}
        for recipe in self._needed(value.recipe):
            inputs = [_found(item, done) for item in recipe.inputs]
            arguments = self._arguments(recipe.translation, inputs, real=True)
            node = replace(recipe.node, known=())
            try:
                with torch.no_grad():
                    done[id(recipe)] = flatten(recipe.translation.run(node, *arguments))
            except Exception as error:  # as in `run`
                raise Refused(f"torch can't run {node.label}: {_first_line(error)}") from error
        return done[id(value.recipe)][value.output]

    def _needed(self, last: Recipe) -> list[Recipe]:
        """Returns what a recipe follows from, and it itself, in order; each once.

        Raises:
            Refused: If that is too large to be computed.
        """
        found: dict[int, Recipe] = {}
        pending, nbytes = [last], last.nbytes
        while pending:
            recipe = pending[-1]
            missing = [other for other in recipe.sources() if id(other) not in found]
            if missing and id(recipe) not in found:
                pending.extend(missing)
                continue
            pending.pop()
            if id(recipe) not in found:
                found[id(recipe)] = recipe
                nbytes += recipe.nbytes
            if nbytes > LARGEST_COMPUTED:
                raise Refused(
                    f"it needs the content of what is computed from constants by"
                    f" {last.node.label}, which takes more than {LARGEST_COMPUTED} bytes; so much"
                    " isn't computed at import time"
                )
        return list(found.values())

    def _concrete(self, value: Value) -> Value:
        if isinstance(value, list):
            return [self._concrete(item) for item in value]
        tensor = self.content(value)
        if tensor is None or not isinstance(value, (Known, Traced)):
            return value
        return Known(tensor, value.kind)

    def _run(self, node: Node, translation: Translation, inputs: list[Value]) -> list[Value]:
        types = [v.kind if isinstance(v, (Known, Traced, Sized)) else None for v in inputs]
        node = replace(node, types=types)
        sized = self.sizing.run(node, inputs)
        if sized is not None:
            return sized
        inputs = self._resolve_static(node, translation, inputs)
        read = [value for at, value in enumerate(inputs) if at not in translation.shaped]
        tensors = [leaf for value in read for leaf in leaves(value)]
        varies = translation.draws or _follows_from_sizes(translation, inputs)
        if not varies and all(isinstance(leaf, Known) for leaf in tensors):
            return self._run_known(node, translation, inputs, tensors)
        node = replace(node, known=[self._content_now(value) for value in inputs])
        arguments = self._arguments(translation, inputs, real=False)
        tree = self.trace.run(node, translation.run, arguments)
        constant = not varies and all(isinstance(leaf, Known) or _follows(leaf) for leaf in tensors)
        given = _given_bytes(tensors) if constant else None
        limit = LARGEST_TENSOR if given is None else max(LARGEST_KNOWN, LARGEST_GROWTH * given)
        for tensor in flatten(tree):
            self._check_size(tensor, limit)
        return self._record(node, translation, inputs, tree, given)

    def _resolve_static(
        self, node: Node, translation: Translation, inputs: list[Value]
    ) -> list[Value]:
        resolved = list(inputs)
        for at, value in enumerate(inputs):
            if value is None or not translation.needs(at):
                continue
            found = self._concrete(value)
            if not all(isinstance(leaf, (Known, Sized)) for leaf in leaves(found)):
                if sizes := self._sizes_behind(found):
                    what = f"its input {node.proto.input[at]!r} follows from open sizes in ways"
                    raise Undecided(f"{what} that aren't followed", *sizes, by_range=False)
                raise Refused(
                    f"the content of its input {node.proto.input[at]!r} must be known at import "
                    "time, and it is computed from the program's inputs",
                    "make it an initializer, or a value that follows from shapes",
                )
            resolved[at] = found
        return resolved

    def _sizes_behind(self, value: Value) -> list[torch.SymInt]:
        """Returns the sizes from which alone a value is computed; none if it reads inputs."""
        waiting = [leaf.place for leaf in leaves(value) if isinstance(leaf, Traced)]
        seen, sizes = set(waiting), list[torch.SymInt]()
        while waiting:
            node = waiting.pop()
            if node in self._given:
                return []
            flat = tree_leaves((node.args, node.kwargs))
            sizes += [each.size for each in flat if isinstance(each, OpenArgument)]
            fresh = [each for each in node.all_input_nodes if each not in seen]
            waiting += fresh
            seen.update(fresh)
        return sizes

    def _run_known(
        self,
        node: Node,
        translation: Translation,
        inputs: list[Value],
        tensors: Sequence[Leaf],
    ) -> list[Value]:
        operands = [leaf for leaf in tensors if isinstance(leaf, Known)]
        source = next((leaf.source for leaf in operands if leaf.source), "")
        elements = sum(leaf.tensor.numel() for leaf in operands)
        if translation.expands or elements > FEW_ELEMENTS:
            node = replace(node, known=[self._content_now(value) for value in inputs])
            shapes = self._shapes(node, translation, inputs)
            operand_bytes = _given_bytes(operands)
            for fake in shapes:
                self._check_size(fake, max(LARGEST_KNOWN, LARGEST_GROWTH * operand_bytes))
            grows = sum(fake.nbytes for fake in shapes) > max(SMALL, operand_bytes)
            if grows and all(_has_place(leaf.tensor) for leaf in operands):
                arguments = self._arguments(translation, inputs, real=False)
                tree = self.trace.run(node, translation.run, arguments)
                return self._record(node, translation, inputs, tree, operand_bytes)
            for fake in shapes:
                self._check_size(fake, max(LARGEST_COMPUTED, LARGEST_GROWTH * operand_bytes))
        arguments = self._arguments(translation, inputs, real=True)
        tree = translation.run(replace(node, known=()), *arguments)
        same = {id(leaf.tensor): leaf for leaf in operands}
        return [self._as_known(item, source, same) for item in _outputs(tree)]

    def _shapes(
        self, node: Node, translation: Translation, inputs: list[Value]
    ) -> list[torch.Tensor]:
        """Returns fake results of a node that reads known values only; empty if that can't be."""
        arguments = self._arguments(translation, inputs, real=False)
        try:
            with self.trace.mode:
                return flatten(translation.run(node, *arguments))
        except (DataDependentOutputException, DynamicOutputShapeException):
            return []

    def _check_size(self, tensor: torch.Tensor, limit: int = LARGEST_KNOWN) -> None:
        if not is_static(tensor) or tensor.nbytes <= limit:
            return
        result = f"its result of shape {list(tensor.shape)} has {tensor.nbytes} bytes"
        if limit == LARGEST_TENSOR:
            raise Refused(f"{result}: too large for any machine")
        raise Refused(f"{result}; at most {limit} are computed at import time")

    def _as_known(self, item: TensorTree, source: str, same: dict[int, Known]) -> Value:
        if item is None:
            return None
        if isinstance(item, torch.Tensor):
            if id(item) in same:
                return same[id(item)]
            self._check_size(item)
            return Known(item, element_type_of(item.dtype), source)
        return [self._as_known(part, source, same) for part in item]

    def _record(
        self,
        node: Node,
        translation: Translation,
        inputs: list[Value],
        tree: TensorTree,
        given: int | None = None,
    ) -> list[Value]:
        """Returns what a node computes that was traced, and stores the known tensors that it reads.

        Args:
            node, translation, inputs: What was run.
            tree: Its results. Those that are one of its inputs, or real, aren't computed by it.
            given: The bytes of what it follows from, if all of that is known.
        """
        operands = [leaf for value in inputs for leaf in leaves(value)]
        same = {
            id(leaf.fake): leaf
            for leaf in operands
            if isinstance(leaf, (Known, Traced)) and leaf.fake is not None
        }
        values: list[Value] = []
        computes = False
        results = flatten(tree)
        recipe = None
        if given is not None:
            nbytes = sum(tensor.nbytes for tensor in results)
            recipe = Recipe(node, translation, tuple(inputs), nbytes, given)
        for tensor in results:
            kind = element_type_of(tensor.dtype)
            if id(tensor) in same:
                values.append(same[id(tensor)])
            elif isinstance(tensor, FakeTensor):
                if not _has_place(tensor):
                    raise Refused(
                        f"its result is {kind.name}, which has no place in a program", _OTHER_TYPE
                    )
                place = self.trace.node_of(tensor)
                values.append(Traced(tensor, place, kind, recipe, len(values)))
                computes = True
            else:
                self._check_size(tensor)
                values.append(Known(tensor, kind))
        if computes:
            for at, value in enumerate(inputs):
                if not translation.needs(at):
                    self._store_leaves(value, node, at)
        ordered = iter(values)
        return [_arrange(item, ordered) for item in _outputs(tree)]

    def _store_leaves(self, value: Value, node: Node, at: int) -> None:
        for leaf in leaves(value):
            if isinstance(leaf, Known):
                self.store(leaf, node, at)

    def store(self, value: Known, node: Node | None = None, position: int = 0) -> fx.Node:
        """Makes a known value a weight or constant of the program, and returns its placeholder.

        Args:
            value: The value.
            node: The node that reads it.
            position: Which input of the node it is.

        Raises:
            Refused: If a program can't hold its dtype.
        """
        if not _has_place(value.tensor):
            what = f"it reads {value.kind.name}, which has no place in a program"
            raise Refused(what, _OTHER_TYPE)
        if value not in self._places:
            place = self._places[value] = self.trace.node_of(self.stand_in(value))
            self.stored.append(StoredTensor(value, place, node, position))
        return self._places[value]

    def _arguments(
        self, translation: Translation, inputs: Sequence[Value], real: bool
    ) -> list[object]:
        return [
            self._argument(value, translation.needs(at), real) for at, value in enumerate(inputs)
        ]

    def _argument(self, value: Value, static: bool, real: bool) -> object:
        if isinstance(value, list):
            return [self._argument(item, static, real) for item in value]
        if isinstance(value, Sized):
            return self.sizing.symbols(value) if static else self.sizing.computed(value).fake
        if isinstance(value, Known):
            if static:
                return as_array(value.tensor)
            if real:
                return value.tensor
            return self.stand_in(value)
        return value.fake if isinstance(value, Traced) else None

    def stand_in(self, value: Known) -> torch.Tensor:
        """Returns the fake tensor that stands for a known value."""
        if value.fake is None:
            value.fake = stand_in(value.tensor, self.trace.mode)
        return value.fake

    def _content_now(self, value: Value) -> Array | None:
        if not isinstance(value, Known):
            return None
        try:
            return value.tensor.numpy()
        except TypeError:
            return as_array(value.tensor) if value.tensor.numel() <= FEW_CONVERTED else None


def _has_place(tensor: torch.Tensor) -> bool:
    """Tells whether a program can hold tensors of this dtype."""
    return tensor.dtype in IR_DTYPES


_Contents = dict[int, list[torch.Tensor]]
"""What recipes return, by the recipe's identity."""


def _found(value: Value, done: _Contents) -> Value:
    """Returns a value with the contents that were computed of it."""
    if isinstance(value, list):
        return [_found(item, done) for item in value]
    if isinstance(value, Traced) and value.recipe is not None:
        return Known(done[id(value.recipe)][value.output], value.kind)
    return value


def _given_bytes(operands: Sequence[Leaf]) -> int:
    """Returns the bytes of the known tensors that these are, or follow from, at most."""
    known = sum(leaf.tensor.nbytes for leaf in dict.fromkeys(operands) if isinstance(leaf, Known))
    recipes = (leaf.recipe for leaf in operands if isinstance(leaf, Traced))
    return max(known, *(recipe.given for recipe in recipes if recipe is not None), 0)


def _follows_from_sizes(translation: Translation, inputs: Sequence[Value]) -> bool:
    """Tells whether what is read of inputs is nothing but a shape, of which sizes are open."""
    shaped = [inputs[at] for at in translation.shaped if at < len(inputs)]
    return any(isinstance(value, Traced) and not is_static(value.fake) for value in shaped)


def _follows(leaf: Leaf) -> bool:
    """Tells whether a traced value follows from known ones."""
    return isinstance(leaf, Traced) and leaf.recipe is not None


def _arrange(item: TensorTree, ordered: Iterator[Value]) -> Value:
    if item is None:
        return None
    if isinstance(item, torch.Tensor):
        return next(ordered)
    return [_arrange(part, ordered) for part in item]


def _outputs(tree: TensorTree) -> list[TensorTree]:
    return list(tree) if isinstance(tree, tuple) else [tree]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0] if lines else type(error).__name__}"
