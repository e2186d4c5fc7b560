"""Every family of timm and torchvision is judged or left out; those that are judged can be made."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tests.sweep.families import Family, FamilyCase, families, left_out, without_dropout
from tests.sweep.tasks import BATCH, TASKS, Classification, make_batch

SHAPE = (3, 16, 8)


def test_families_are_listed_once_and_differ() -> None:
    judged = families()
    others = [f"{each.library}/{name}" for each in left_out() for name in each.families]
    assert len(judged) >= 40
    assert len(set(others)) == len(others)
    assert not set(others) & set(judged)
    assert all(each.differs and each.task in TASKS for each in judged.values())


def test_no_family_of_timm_is_forgotten() -> None:
    timm = pytest.importorskip("timm")
    listed = {name.partition("/")[2] for name in families() if name.startswith("timm/")}
    listed |= {name for each in left_out() if each.library == "timm" for name in each.families}
    assert set(timm.list_modules()) <= listed


def test_no_family_of_torchvision_is_forgotten() -> None:
    models = pytest.importorskip("torchvision.models")
    judged = [name.partition("/")[2] for name in families() if name.startswith("torchvision/")]
    others = [
        name for each in left_out() if each.library == "torchvision" for name in each.families
    ]
    plain = [each.replace("_", "") for each in (*judged, *others)]
    aliases = {"mc3": "videoresnet"}
    for name in models.list_models():
        first = name.partition("_")[0]
        found = aliases.get(first, name.replace("_", ""))
        assert any(found.startswith(each) for each in plain), name


@pytest.mark.parametrize("task", TASKS)
def test_batches_differ_by_step_and_are_always_the_same(task: str) -> None:
    first, again, second = (make_batch(task, SHAPE, number) for number in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["images"], second["images"])
    assert {each.shape[0] for each in first.values()} == {BATCH}


def test_boxes_lie_within_images() -> None:
    boxes = make_batch("detection", SHAPE, 0)["boxes"]
    assert (boxes[..., 2:] > boxes[..., :2]).all()
    assert (boxes <= torch.tensor([8.0, 16.0, 8.0, 16.0])).all()


def test_losses_of_all_heads_are_added() -> None:
    class Heads(nn.Module):
        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": images.mean((2, 3)), "aux": 2 * images.mean((2, 3))}

    images, labels = torch.rand(4, 3, 2, 2), torch.tensor([0, 1, 2, 0])
    logits = images.mean((2, 3))
    found = Classification(Heads())(images, labels)
    one, two = (nn.functional.cross_entropy(times * logits, labels) for times in (1, 2))
    torch.testing.assert_close(found.loss, one + two)


def test_nothing_is_dropped_when_it_should_not() -> None:
    class StochasticDepth(nn.Module):
        p = 0.5

        def __init__(self) -> None:
            super().__init__()
            self.p, self.momentum = 0.5, 0.1

    model = nn.Sequential(nn.Dropout(0.3), StochasticDepth(), nn.BatchNorm1d(2, momentum=0.1))
    without_dropout(model)
    assert (model[0].p, model[1].p, model[1].momentum, model[2].momentum) == (0, 0, 0.1, 0.1)


def test_records_of_families_are_told_as_those_of_types() -> None:
    small = Family("timm/vgg", "timm.models.vgg.VGG", "it", arguments={"cfg": [16, "M"]})
    record = FamilyCase(small, parameters=3).record()
    assert json.loads(json.dumps(record)) == {
        "built": "VGG",
        "rung": "3x64x64, cfg [16, 'M']",
        "loss": "own",
        "draws": False,
        "parameters": 3,
    }
