"""Models from elsewhere drop the same elements on every mesh: those that one rank drops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from autopar.ir.mesh import ProcessMesh
from tests.zoo.models import ZOO, Example
from tests.zoo.test_training import MESHES, mesh_of, strategies
from tests.zoo.training import ROUNDING, Trained, compare, compile_step, train_on_mesh

PROBABILITY = 0.1
ATTRIBUTES = ("dropout", "attention_dropout", "activation_dropout", "dropout_prob")
"""Where modules keep a probability with which they call `torch.nn.functional.dropout`."""

DROPPING = tuple(name for name in ZOO if name != "resnet")
"""The models that know dropout."""

FAST = [
    ("gpt2", "2x3", "fsdp:a,tensor:b"),
    ("llama", "3", "tensor:a"),
    ("bert", "2x2", "ddp:a,tensor:b,sequence:b"),
    ("transformer", "2", "context:a"),
]


def dropping(name: str) -> Example:
    """Returns a model that drops elements wherever it can."""
    example = ZOO[name]()
    for module in example.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = PROBABILITY
        for attribute in ATTRIBUTES:
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, PROBABILITY)
    return example


def trained(name: str, mesh: ProcessMesh, strategy: str, build: Path) -> Trained:
    """Trains a model that drops elements, by an optimizer that doesn't amplify rounding."""
    example = dropping(name)
    optimizer = SGD(example.model.parameters(), 0.1, momentum=0.9)
    compile_step(example, mesh, strategy, {}, build, optimizer)
    return train_on_mesh(build, example)


def rounded(after: Trained, example: Example) -> dict[str, Tensor]:
    """Returns how far rounding may take elements whose gradient is zero but for that."""
    before = example.model.state_dict()
    changes = {name: (after.state[name] - whole).abs().max() for name, whole in before.items()}
    largest = torch.stack(list(changes.values())).max()
    return dict.fromkeys(before, ROUNDING * largest)


def _cases() -> list[object]:
    every = [
        (model, mesh, each) for model in DROPPING for mesh in MESHES for each in strategies(mesh)
    ]
    rest = [case for case in every if case not in FAST]
    return [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in rest)]


@pytest.mark.parametrize(("model", "mesh", "strategy"), _cases())
def test_every_mesh_drops_what_one_rank_drops(
    model: str, mesh: str, strategy: str, tmp_path: Path
) -> None:
    alone = trained(model, ProcessMesh.of_shape((1,), ("a",)), "ddp:a", tmp_path / "alone")
    expected = replace(alone, slack=rounded(alone, dropping(model)))
    compare(trained(model, mesh_of(mesh), strategy, tmp_path / "build"), expected)


def test_dropout_changes_the_loss(tmp_path: Path) -> None:
    one = ProcessMesh.of_shape((1,), ("a",))
    compile_step(ZOO["bert"](), one, "ddp:a", {}, tmp_path / "plain")
    plain = train_on_mesh(tmp_path / "plain", ZOO["bert"]())
    assert trained("bert", one, "ddp:a", tmp_path / "alone").losses[0] != plain.losses[0]
