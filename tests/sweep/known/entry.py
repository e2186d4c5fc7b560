"""What is known of a model type beyond its defaults, and short words for the inputs it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from tests.sweep.inputs import BATCH, Form, Make, size


@dataclass(frozen=True)
class Known:
    """What is known of a model type.

    Attributes:
        sizes: Arguments of its configuration, those of configurations inside it by dotted path.
            They are sizes that fit together, and what the defaults lack for the model to run.
        inputs: What is made of arguments of its forward, by name; `absent` leaves one out. Names
            like `levels.0`, `levels.1` make one argument, a list; `states.first`, a mapping,
            or the dataclass that forward is annotated with.
        alone: Whether nothing is given but these inputs.
        options: Arguments of its forward that aren't tensors.
        kind: The name of the class to take, if not the usual one.
        part: The configuration inside its own that the class is made of.
        whole: The model type to take instead: what this one is a part of, or, where it has no
            forward that takes tensors, the largest part that has.
        drawn: Parameters, by patterns of their names, that the library leaves as memory was.
        unable: Why it can't be run, by the library's own word.
    """

    sizes: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Make] = field(default_factory=dict)
    alone: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    part: str = ""
    whole: str = ""
    drawn: Sequence[str] = ()
    unable: str = ""


PERCEIVING = {"img_size": 56, "embed_dim": 64, "depth": 2, "num_heads": 4, "attn_pool_num_heads": 4}
"""Sizes of a perception encoder, which timm makes."""


def floats(*shape: int) -> Make:
    """Returns normally distributed numbers."""
    return lambda config, form, draw: torch.randn(*shape, generator=draw)


def uniform(*shape: int) -> Make:
    """Returns numbers between 0 and 1, as of boxes, times, and pixels that aren't centred."""
    return lambda config, form, draw: torch.rand(*shape, generator=draw)


def integers(low: int, high: int, *shape: int) -> Make:
    """Returns integers of `low` and more, below `high`."""
    return lambda config, form, draw: torch.randint(low, high, shape, generator=draw)


def ones(*shape: int, dtype: torch.dtype = torch.long) -> Make:
    """Returns ones, as of masks that hide nothing."""
    return lambda config, form, draw: torch.ones(*shape, dtype=dtype)


def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Make:
    """Returns zeros."""
    return lambda config, form, draw: torch.zeros(*shape, dtype=dtype)


def always(values: Sequence[Any]) -> Make:
    """Returns these values for every batch, as of grids and places."""
    return lambda config, form, draw: torch.tensor(values)


def text(*parts: int | tuple[str | int, int]) -> Make:
    """Returns texts with tokens that stand for something else.

    Args:
        parts: How many tokens there are of text, or what stands for something else and how many
            there are of it: a token, or the configuration's attribute that says which it is.
    """

    def make(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
        runs = [(None, each) if isinstance(each, int) else each for each in parts]
        marks = [size(config, (each,), None) if isinstance(each, str) else each for each, _ in runs]
        found = torch.randint(3, 100, (BATCH, sum(count for _, count in runs)), generator=draw)
        for each in set(marks) - {None}:
            found = found.masked_fill(found == each, 3)
        at = 0
        for mark, (_, count) in zip(marks, runs, strict=True):
            if mark is not None:
                found[:, at : at + count] = mark
            at += count
        return found

    return make


def absent(config: PretrainedConfig, form: Form, draw: torch.Generator) -> None:
    """Returns nothing: an argument that isn't given."""
