"""Families of timm's and torchvision's models: which are judged, which aren't, and their cases."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from tests.sweep.case import Inference, Training, Unbuilt, take_step
from tests.sweep.child import Record
from tests.sweep.tasks import CLASSES, TASKS, make_batch

LISTED = Path(__file__).with_name("families.yaml")
LIBRARIES = ("timm", "torchvision")
PARAMETERS = 35_000_000
"""More than which a model isn't small."""


@dataclass(frozen=True)
class Family:
    """A family that is judged, by one of its models.

    Attributes:
        name: The library's, and the family's.
        model: The name by which the library makes it, or where its class is found.
        differs: What others haven't.
        size: Of images in pixels, or all of the shape of an input.
        task: One of `TASKS`.
        arguments: What makes it small.
    """

    name: str
    model: str
    differs: str
    size: int | tuple[int, ...] = 64
    task: str = "classification"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an image."""
        return (3, self.size, self.size) if isinstance(self.size, int) else tuple(self.size)

    def __str__(self) -> str:
        told = [f"{name} {value}" for name, value in self.arguments.items() if _is_short(value)]
        return ", ".join(["x".join(map(str, self.shape)), *told])


def _is_short(value: Any) -> bool:
    return not isinstance(value, dict | list) or len(str(value)) < 40


@dataclass(frozen=True)
class LeftOut:
    """Families that aren't judged.

    Attributes:
        library: Theirs.
        families: Their names.
        because: What there is of the same kind, or why they can't be made small.
    """

    library: str
    families: tuple[str, ...]
    because: str


def families() -> dict[str, Family]:
    """Returns the families that are judged, by name."""
    return {name: Family(name, **row) for name, row in _listed()["judged"].items()}


def left_out() -> Iterator[LeftOut]:
    """Returns those that aren't."""
    for row in _listed()["left out"]:
        yield LeftOut(row["library"], tuple(row["families"]), row["because"])


@cache
def _listed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(LISTED.read_text(), _Loader)
    return found


class _Loader(yaml.SafeLoader):
    """Knows tuples too, which some constructors want."""


_Loader.add_constructor("!tuple", lambda loader, node: tuple(loader.construct_sequence(node)))


def missing_libraries() -> list[str]:
    """Returns the libraries of the families that aren't installed."""
    return [each for each in LIBRARIES if find_spec(each) is None]


def versions() -> str:
    """Returns the libraries' names and versions."""
    return ", ".join(f"{each} {version(each)}" for each in (*LIBRARIES, "torch"))


@dataclass(frozen=True)
class FamilyCase:
    """A model of a family, with what it is trained for around it."""

    family: Family
    loss: str = "own"
    draws: bool = False
    parameters: int = 0

    @property
    def name(self) -> str:
        """The family's."""
        return self.family.name

    def model(self, dropout: bool) -> nn.Module:
        """Returns a new model, always with the same weights."""
        around, _ = TASKS[self.family.task]
        made = around(new_model(self.family)).double()
        return made if dropout else without_dropout(made)

    def batch(self, model: nn.Module, number: int) -> dict[str, Tensor]:
        """Returns the batch of a step."""
        return make_batch(self.family.task, self.family.shape, number)

    def training(self, model: nn.Module) -> Training:
        """Returns what is trained of a model."""
        return Training(model)

    def inference(self, model: nn.Module) -> Inference:
        """Returns what is run of a model."""
        return Inference(model)

    def record(self) -> Record:
        """Returns what is told of it."""
        return {
            "built": self.family.model.rpartition(".")[2],
            "rung": str(self.family),
            "loss": self.loss,
            "draws": self.draws,
            "parameters": self.parameters,
        }


def build(name: str) -> FamilyCase:
    """Makes the model of a family, which takes a training step.

    Raises:
        Unbuilt: If it doesn't.
    """
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    case = FamilyCase(families()[name])
    try:
        model = case.model(dropout=True)
        count = sum(each.numel() for each in model.parameters())
        if count > PARAMETERS:
            raise Unbuilt(f"{count:,} parameters")
        loss, draws = take_step(case, model)
    except Exception as error:  # what a library raises for what doesn't fit
        raise Unbuilt(f"{type(error).__name__}: {error}"[:200]) from error
    return replace(case, loss=loss, draws=draws, parameters=count)


def new_model(family: Family) -> nn.Module:
    """Returns the model of a family, with weights that are drawn."""
    torch.manual_seed(0)
    arguments = {name: _made(value) for name, value in family.arguments.items()}
    if "." in family.model:
        found: nn.Module = _made({"class": family.model, **arguments})
    elif family.name.startswith("timm/"):
        import timm

        found = timm.create_model(family.model, num_classes=CLASSES, **arguments)
    else:
        from torchvision.models import get_model

        classes = {} if family.task == "flow" else {"num_classes": CLASSES}
        found = get_model(family.model, weights=None, **classes, **arguments)
    return found


def _made(value: Any) -> Any:
    """Returns an argument: an instance, where a class is named."""
    if isinstance(value, list):
        return [_made(each) for each in value]
    if not isinstance(value, dict):
        return value
    arguments = {name: _made(each) for name, each in value.items()}
    module, _, name = arguments.pop("class").rpartition(".")
    return getattr(importlib.import_module(module), name)(**arguments)


def without_dropout(model: nn.Module) -> nn.Module:
    """Sets every probability of dropping something to zero, in place."""
    for module in model.modules():
        dropping = "drop" in type(module).__name__.lower() or type(module).__name__ == _DEPTH
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name or (dropping and name == "p")):
                setattr(module, name, 0.0)
    return model


_DEPTH = "StochasticDepth"
