"""Values during import: known (a tensor at hand) or traced (computed by the program)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy.typing as npt
import torch
from torch import fx

from autopar.frontend.onnx.model.dtypes import ElementType
from autopar.frontend.onnx.trace.node import Node


@dataclass(eq=False, slots=True)
class Known:
    """A value that is known at import time.

    Attributes:
        tensor: Its content.
        kind: Its ONNX element type.
        source: The name of the initializer or Constant it comes from; "" if it follows from
            shapes alone.
        fake: Its stand-in where it meets traced values.
    """

    tensor: torch.Tensor
    kind: ElementType
    source: str = ""
    fake: torch.Tensor | None = None


@dataclass(eq=False, slots=True)
class Traced:
    """A value that the program computes.

    Attributes:
        fake: Its shape and dtype.
        place: What computes it.
        kind: Its ONNX element type.
        recipe: How to compute it now, if it follows from known values: it is too large to do so,
            unless something asks for its content.
        output: Which of the recipe's results it is.
    """

    fake: torch.Tensor
    place: fx.Node
    kind: ElementType
    recipe: Recipe | None = None
    output: int = 0


@dataclass(eq=False, slots=True)
class Sized:
    """Integers that follow from shapes, of which some are open.

    Attributes:
        array: Numbers and expressions.
        kind: Its ONNX element type.
        traced: The same as the program computes it, where that was asked for.
    """

    array: npt.NDArray[Any]
    kind: ElementType
    traced: Traced | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The value of a node that can't be expressed. What reads it fails silently, in turn."""


Value: TypeAlias = "Known | Traced | Sized | Failed | list[Value] | None"
"""None is an input that is left out, or an empty optional; a list is an ONNX sequence."""

Leaf = Known | Traced | Sized | Failed
"""A value that is one tensor."""

TensorTree: TypeAlias = "torch.Tensor | list[TensorTree] | tuple[TensorTree, ...] | None"
"""What a translation returns: a tensor, a list for a sequence, or a tuple of several outputs."""

Translate = Callable[..., TensorTree]
"""A translation: called with the node and its inputs, runs torch functions."""


@dataclass(frozen=True, slots=True)
class Translation:
    """How an ONNX operator is expressed.

    Attributes:
        run: The translation.
        static: Positions of the inputs whose content it needs, as numpy arrays.
        shaped: Positions of the inputs of which it reads shape and dtype only.
        expands: Whether outputs may be far larger than all inputs: shapes are computed first.
        draws: Whether it may draw random numbers: then it is never run at import time.
        caveat: What the user should know about a node with these inputs; "" if nothing.
    """

    run: Translate
    static: tuple[int, ...] = ()
    shaped: tuple[int, ...] = ()
    expands: bool = False
    draws: bool = False
    caveat: Callable[[Node, Sequence[Value]], str] | None = None

    def needs(self, position: int) -> bool:
        """Tells whether the content of the input at this position is needed."""
        return position in self.static


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a traced value follows from known ones.

    Attributes:
        node, translation, inputs: What is run.
        nbytes: The bytes of its results.
        given: The bytes of the known tensors that it follows from.
    """

    node: Node
    translation: Translation
    inputs: tuple[Value, ...]
    nbytes: int
    given: int

    def sources(self) -> Iterator[Recipe]:
        """Yields the recipes that it directly follows from."""
        for value in self.inputs:
            for leaf in leaves(value):
                if isinstance(leaf, Traced) and leaf.recipe is not None:
                    yield leaf.recipe


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A known tensor that the program reads: a weight or constant.

    Attributes:
        value: The tensor.
        place: Its placeholder.
        node: The first node that reads it; None if it is an output of the program.
        position: Which input of that node it is.
    """

    value: Known
    place: fx.Node
    node: Node | None
    position: int


def leaves(value: Value) -> Iterator[Leaf]:
    """Yields the tensors of a value."""
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def flatten(tree: TensorTree) -> list[torch.Tensor]:
    """Returns the tensors of what a translation returned, in order."""
    if tree is None:
        return []
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [tensor for item in tree for tensor in flatten(item)]
