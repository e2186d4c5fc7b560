"""Construction: what building a model computes, as instructions on the contents of storages.

A model's constructor draws and writes the parameters of the whole model. Written down as
instructions, without memory behind them, it can be carried out with one parameter in memory at a
time. Where a storage is overwritten as a whole, as by a second initialization, it has a new content
from then on, and nothing depends on the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from autopar.runtime.files.digest import content_of, digest_bytes

START = -1
"""The position of a generator before anything is drawn."""


@dataclass(frozen=True)
class View:
    """A tensor, as a view of the content of a storage.

    Attributes:
        content: The content's number.
        dtype, size, stride, offset: Those of the tensor.
        conjugated: Whether the tensor reads as the conjugate of its memory.
    """

    content: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugated: bool = False


@dataclass(frozen=True)
class Draw:
    """That an instruction draws random numbers.

    Attributes:
        generator: What it draws from.
        position: The position of the generator afterwards: positions count all draws.
        start: What the generator is set to before: a state, or that of an earlier position; None
            if it goes on from where it is.
    """

    generator: torch.Generator
    position: int
    start: Tensor | int | None


@dataclass(frozen=True)
class Instruction:
    """An op of a construction.

    Attributes:
        func: The op.
        args, kwargs: What it is called with; a `View` stands for a tensor.
        made: The contents that it returns, as views by the position of its tensor results.
        begun: The content that it writes as a whole into memory which is allocated for it.
        reads: The contents that it needs, also those of which it writes a part.
        writes: The contents that it makes, begins or writes a part of.
        draw: Its random numbers, if any.
        default_dtype: Torch's default dtype at this point.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: Mapping[int, View]
    begun: int | None
    reads: frozenset[int]
    writes: frozenset[int]
    draw: Draw | None
    default_dtype: torch.dtype


@dataclass(frozen=True)
class Construction:
    """A model's construction.

    Attributes:
        instructions: In the order of the constructor.
        sizes: Bytes of each content.
        tensors: The parameters and buffers that it leaves, by all their names.
        saved: The names of those that are in the model's state dict.
        end: What torch's generator is set to at the end; None to leave it where it is.
    """

    instructions: tuple[Instruction, ...]
    sizes: Mapping[int, int]
    tensors: Mapping[str, View]
    saved: frozenset[str]
    end: Tensor | int | None

    @property
    def brief(self) -> str:
        """What it does, in a few letters: those that give tensors the same values have the same."""
        calls = [
            (
                str(getattr(each.func, "__qualname__", each.func)),
                tree_map(_told, (each.args, each.kwargs, each.draw and each.draw.start)),
            )
            for each in self.instructions
        ]
        return f"{digest_bytes(repr([calls, sorted(self.tensors.items())]).encode()):016x}"


def _told(argument: object) -> str:
    """Returns an argument of an op, as it is on every process that calls alike."""
    if isinstance(argument, Tensor):
        return content_of(argument)
    return "a generator" if isinstance(argument, torch.Generator) else repr(argument)
