"""Batches of any structure, and what doesn't fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from autopar.base.errors import InvalidInputError
from autopar.runtime.ports.batches import label_batch, looks_like_a_part

A, B, C = (torch.full((1,), float(number)) for number in range(3))


@dataclass
class Record:
    ids: torch.Tensor
    mask: torch.Tensor
    training: bool = True


class Pair(NamedTuple):
    x: torch.Tensor
    target: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "labels"),
    [
        (A, {"x": A}),
        ((A, B), {"x": A, "target": B}),
        ([A, [B, C]], {"x": A, "target.0": B, "target.1": C}),
        (Pair(A, B), {"x": A, "target": B}),
        ({"mask": B, "ids": A}, {"ids": A, "mask": B}),
        (({"mask": B, "ids": A}, C), {"ids": A, "mask": B, "target": C}),
        ((A, {"ids": B, "mask": C}), {"x": A, "target.ids": B, "target.mask": C}),
        (Record(A, B), {"ids": A, "mask": B}),
        ({"a": {"x": A}, "b": {"x": B}}, {"b.x": B, "a.x": A}),
        ({"pair": (A, B), "x": C}, {"x": C, "pair.0": A, "pair.1": B}),
        ((A, None, "a flag", 3), {"x": A}),
    ],
)
def test_tensors_are_told_by_their_place(batch: Any, labels: dict[str, torch.Tensor]) -> None:
    found = label_batch(batch, list(labels))
    assert found.keys() == labels.keys()
    assert all(found[label] is tensor for label, tensor in labels.items())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((A,), "the batch has 1 tensor, the program takes 2: x, target; nothing is given for"),
        ((A, B, C), "has 3 tensors, the program takes 2: x, target; nothing takes batch.2."),
        ({"x": A, "tagret": B}, "nothing is given for target; nothing takes batch.'tagret'."),
    ],
)
def test_what_does_not_fit_is_named(batch: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        label_batch(batch, ["x", "target"])


def test_shares_of_a_batch_are_told_from_other_batches() -> None:
    wanted = [(8, 3), (8,), ()]
    assert looks_like_a_part([(2, 3), (2,), ()], wanted, 4)
    assert looks_like_a_part([(4, 3), (4,), ()], wanted, 4)
    assert not looks_like_a_part(wanted, wanted, 4)
    assert not looks_like_a_part([(4, 3), (2,), ()], wanted, 4)
    assert not looks_like_a_part([(2, 3), (2,), ()], wanted, 2)
    assert not looks_like_a_part([(5, 3), (5,), ()], wanted, 4)
    assert not looks_like_a_part([(2, 3), (2, 1), ()], wanted, 4)
    assert not looks_like_a_part([], [], 4)
