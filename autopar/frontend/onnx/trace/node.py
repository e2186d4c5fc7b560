"""What a translation sees of the ONNX node that it translates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from autopar.frontend.lower.symbols import SymSize
from autopar.frontend.onnx.model.dtypes import ElementType, element_type, type_name
from autopar.frontend.onnx.model.external import ExternalData
from autopar.frontend.onnx.model.tensors import read_sparse, read_tensor
from autopar.ir.expr.expression import IntExpr

Array = npt.NDArray[np.generic]
"""The content of an input that is known at import time. Numpy's, so that no tracer sees it."""


class Refused(Exception):
    """A node can't be expressed; the message says why.

    Attributes:
        advice: What the user may do about it; may be empty.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what)
        self.advice = advice


class Undecided(Refused):
    """A node can't be expressed as long as sizes are open; its advice says which to bind.

    Args:
        what: Why not.
        sizes: The sizes that decide what the node does; those that are numbers don't count.
        by_range: Whether a range of them may be enough.
    """

    def __init__(self, what: str, *sizes: SymSize | IntExpr, by_range: bool = True) -> None:
        super().__init__(what)
        self.sizes = sizes
        self.by_range = by_range


def to_bind(names: str, ranges: Sequence[str] = ()) -> str:
    """Returns what a user may do where open sizes decide what a node does.

    Args:
        names: The sizes, with commas between them.
        ranges: Of these, as users write them, within which it always does the same.
    """
    if ranges:
        return f"say how large they may be together, as --dims {','.join(ranges)}"
    least = ",".join(f"{name}=1:" for name in names.split(", "))
    return f"{to_fix(names)}, or say that it has at least 1, or 2: --dims {least}"


def to_fix(names: str) -> str:
    """Returns what a user may do where no range of open sizes is enough for a node."""
    return f"bind {names} with --dims {','.join(f'{name}=8' for name in names.split(', '))}"


def as_array(tensor: torch.Tensor) -> Array:
    """Returns the content of a tensor; dtypes that numpy lacks become float32."""
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.to(torch.float32).numpy()


def read_tensors(
    attributes: Mapping[str, AttributeProto], files: ExternalData
) -> dict[str, torch.Tensor]:
    """Returns the content of the attributes that are tensors, by name."""
    tensors = {}
    for name, attribute in attributes.items():
        if attribute.type == AttributeProto.TENSOR:
            tensors[name] = read_tensor(attribute.t, files)
        elif attribute.type == AttributeProto.SPARSE_TENSOR:
            tensors[name] = read_sparse(attribute.sparse_tensor, files)
    return tensors


@dataclass
class Node:
    """An ONNX node on its way into a program.

    Attributes:
        proto: The node.
        name: What it is called in messages and in the program.
        domain: The operator's domain, `""` for the default one.
        opset: The version of that domain.
        attributes: Its attributes by name, references to those of a function resolved.
        tensors: Its attributes that are tensors.
        arrays: The small ones among them, as arrays.
        types: The ONNX element type of each input; None where it is left out or no tensor.
        known: For a node that is recorded, the content of the inputs that are known.
    """

    proto: NodeProto
    name: str
    domain: str
    opset: int
    attributes: Mapping[str, AttributeProto]
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    types: Sequence[ElementType | None] = ()
    known: Sequence[Array | None] = ()

    @property
    def op_type(self) -> str:
        """The operator."""
        return self.proto.op_type

    @property
    def label(self) -> str:
        """The node in a message: name, operator, opset."""
        domain = f"{self.domain}." if self.domain else ""
        return f"node {self.name!r} ({domain}{self.op_type}, opset {self.opset})"

    def has(self, name: str) -> bool:
        """Tells whether the node has the attribute."""
        return name in self.attributes

    def wants(self, output: int) -> bool:
        """Tells whether the output at this position has a name, that is, may be read."""
        return output < len(self.proto.output) and bool(self.proto.output[output])

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an int attribute."""
        return self.attributes[name].i if name in self.attributes else default

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns an int attribute that means yes or no."""
        return self.integer(name, int(default)) != 0

    def number(self, name: str, default: float = 0.0) -> float:
        """Returns a float attribute."""
        return self.attributes[name].f if name in self.attributes else default

    def text(self, name: str, default: str = "") -> str:
        """Returns a string attribute."""
        if name not in self.attributes:
            return default
        return self.attributes[name].s.decode("utf-8", "replace")

    def texts(self, name: str) -> list[str]:
        """Returns an attribute that lists strings; empty if it is missing."""
        if name not in self.attributes:
            return []
        return [item.decode("utf-8", "replace") for item in self.attributes[name].strings]

    def integers(self, name: str) -> list[int] | None:
        """Returns an attribute that lists ints, or None if it is missing."""
        return list(self.attributes[name].ints) if name in self.attributes else None

    def numbers(self, name: str) -> list[float] | None:
        """Returns an attribute that lists floats, or None if it is missing."""
        return list(self.attributes[name].floats) if name in self.attributes else None

    def graph(self, name: str) -> GraphProto:
        """Returns a graph attribute."""
        return self.attributes[name].g

    def dtype(self, name: str) -> torch.dtype:
        """Returns the dtype that an int attribute names, by default float32; see `element_type`."""
        return self.element_type(self.integer(name, TensorProto.FLOAT)).carrier

    def element_type(self, number: int) -> ElementType:
        """Returns the element type that ONNX gives this number.

        Raises:
            Refused: If we have none like it.
        """
        kind = element_type(number)
        if kind is None:
            raise Refused(f"element type {type_name(number)} isn't supported")
        return kind

    def content(self, position: int) -> Array | None:
        """Returns the content of a known input of a node that is recorded, else None.

        A translation may use it in place of the tensor. If it doesn't, the tensor becomes a
        weight or a constant of the program.
        """
        return self.known[position] if position < len(self.known) else None

    def scalar(self, position: int, like: torch.Tensor) -> float | int | None:
        """Returns a known input that is a single number and broadcasts to `like`, else None."""
        content = self.content(position)
        if content is None or content.size != 1 or content.ndim > like.ndim:
            return None
        kind = self.types[position]
        if kind is None or kind.carrier != like.dtype or content.dtype.kind not in "fi":
            return None
        number = content.item()
        return number if isinstance(number, (int, float)) else None
