"""Plain values that no code reads may change from batch to batch; others may not."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import autopar
from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Recipe, capture
from autopar.ir.leaves import any_of, recorded
from autopar.ir.program import Example

X = torch.ones(3, 4)
BATCH = {"x": X, "ids": ["a", "b"], "name": "1", "count": 2, "weight": 0.5}

Step = Callable[[nn.Module, Any], Tensor]


def example(step: Step, batch: Any = BATCH) -> Example:
    """Returns what is noted of a batch with a training step."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = capture(model, batch, Recipe(training_step=step, optimizer=optimizer)).program.example
    assert found is not None
    return found


def reading(read: Callable[[Any, Tensor], Any]) -> Step:
    """Returns a step that does something with its batch and goes on as if it hadn't."""

    def step(model: nn.Module, batch: Any) -> Tensor:
        y = model(batch["x"])
        read(batch, y)
        loss: Tensor = y.pow(2).mean()
        return loss

    return step


def matched(batch: Any, _: Tensor) -> bool:
    match batch["name"]:
        case "b":
            return True
    return False


READS: dict[str, tuple[str, Callable[[Any, Tensor], Any]]] = {
    "==": ("name", lambda b, y: b["name"] == "b"),
    "in a set": ("name", lambda b, y: b["name"] in {"b"}),
    "in a tuple": ("name", lambda b, y: b["name"] in ("b", "c")),
    "in a text": ("name", lambda b, y: b["name"] in "bcd"),
    "of a table": ("name", lambda b, y: {"1": 1, "b": 2}.get(b["name"])),
    "match": ("name", matched),
    "isinstance first": ("name", lambda b, y: isinstance(b["name"], str) and b["name"] == "b"),
    "format": ("name", lambda b, y: f"{b['name']}"),
    "percent": ("name", lambda b, y: "%s" % b["name"]),  # noqa: UP031
    "method": ("name", lambda b, y: b["name"].startswith("b")),
    "getattr": ("name", lambda b, y: getattr(y, b["name"], None)),
    "truth": ("name", lambda b, y: not b["name"]),
    "int": ("name", lambda b, y: int(b["name"])),
    "json": ("name", lambda b, y: json.dumps(b["name"])),
    "concatenation": ("name", lambda b, y: "b" + b["name"]),
    "len": ("ids", lambda b, y: len(b["ids"]) > 2),
    "iteration": ("ids", lambda b, y: [each for each in b["ids"] if each == "b"]),
    "unpacking": ("ids", lambda b, y: (*b["ids"],)),
    "item": ("ids", lambda b, y: b["ids"][0] == "b"),
    "membership": ("ids", lambda b, y: "c" in b["ids"]),
    "join": ("ids", lambda b, y: ",".join(b["ids"])),
    "list + list": ("ids", lambda b, y: ["c"] + b["ids"]),
    "deepcopy": ("ids", lambda b, y: copy.deepcopy(b["ids"])),
    "sorted": ("ids", lambda b, y: sorted(b["ids"])),
    "<": ("count", lambda b, y: b["count"] < 3),
    "range": ("count", lambda b, y: [y + 1 for _ in range(b["count"])]),
    "times a tensor": ("count", lambda b, y: b["count"] * y),
    "tensor times": ("weight", lambda b, y: y * b["weight"]),
    "index": ("count", lambda b, y: y[b["count"]]),
    "slice": ("count", lambda b, y: y[: b["count"]]),
    "dimension": ("count", lambda b, y: y.unsqueeze(b["count"])),
    "max": ("count", lambda b, y: max(b["count"], 3)),
    "math": ("weight", lambda b, y: math.sqrt(b["weight"])),
    "full": ("weight", lambda b, y: torch.full((2,), b["weight"])),
    "tensor": ("weight", lambda b, y: torch.tensor(b["weight"])),
    "option": ("weight", lambda b, y: nn.functional.leaky_relu(y, b["weight"])),
    "float": ("weight", lambda b, y: float(b["weight"])),
}


@pytest.mark.parametrize("way", READS)
def test_what_is_read_is_part_of_the_program(way: str) -> None:
    label, read = READS[way]
    given = dict(example(reading(read)).given)
    assert given[label] == recorded(BATCH[label])


@pytest.mark.parametrize(
    "use",
    [
        lambda b, y: None,
        lambda b, y: {k: v for k, v in b.items() if isinstance(v, Tensor)},
        lambda b, y: [v is None or torch.is_tensor(v) for v in b.values()],
        lambda b, y: pytree.tree_map(lambda v: v * 2 if isinstance(v, Tensor) else v, dict(b)),
        lambda b, y: (lambda x, **rest: x)(**b),
    ],
)
def test_what_is_handed_on_alone_is_not(use: Callable[[Any, Tensor], Any]) -> None:
    kinds = {"ids": list, "name": str, "count": int, "weight": float}
    assert dict(example(reading(use)).given) == {name: any_of(kinds[name]) for name in kinds}


def test_one_that_is_read_leaves_the_others_free() -> None:
    given = dict(example(reading(lambda b, y: (b["name"] == "b", b["count"] + 1))).given)
    assert given == {"ids": "<any list>", "name": "1", "count": 2, "weight": "<any float>"}


def test_values_that_change_what_is_computed_are_part_of_the_program() -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        y = model(batch["x"])
        loss: Tensor = (y * 2 if type(batch["name"]) is str else y).mean()
        return loss

    assert dict(example(step).given) == {n: recorded(v) for n, v in BATCH.items() if n != "x"}


def test_pairs_and_flags() -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = model(batch[0]).mean()
        return loss

    given = dict(example(step, (X, ["a"], True, None, ("b", 1))).given)
    assert given == {"1": "<any list>", "2": True, "3": None, "4": "<any tuple>"}


def test_a_text_like_the_note_is_a_text() -> None:
    assert recorded("<any str>") == "<text '<any str>'>"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("unread") / "build"
    model = nn.Linear(4, 2)
    autopar.compile(
        model,
        BATCH,
        mesh=1,
        training_step=reading(lambda b, y: b["count"] + 1),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ).save(folder)
    with autopar.load(folder) as found:
        yield found


def test_batches_with_other_values_train(trainer: Any) -> None:
    for changed in ({"ids": ["c", "d"]}, {"ids": []}, {"name": "z"}, {"weight": 9.0}):
        assert trainer.step({**BATCH, **changed}).isfinite()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"count": 3}, r"batch\['count'\] is 3, the program was compiled with 2; what is no"),
        ({"ids": "c"}, r"batch\['ids'\] is 'c', the program was compiled with <any list>"),
        ({"name": None}, r"batch\['name'\] is None, the program was compiled with <any str>"),
    ],
)
def test_others_are_refused(trainer: Any, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        trainer.step({**BATCH, **changed})
    less = {name: each for name, each in BATCH.items() if name != "ids"}
    with pytest.raises(InvalidInputError, match="'ids' is left out"):
        trainer.step(less)


def test_requests(tmp_path: Path) -> None:
    class Named(nn.Linear):
        def forward(self, x: Tensor, name: str = "a", scale: float = 1.0) -> Tensor:
            return super().forward(x) * scale

    example = {"x": X, "name": "b", "scale": 2.0}
    autopar.compile(Named(4, 2), example, mesh=1).save(tmp_path / "b")
    with autopar.load(tmp_path / "b") as session:
        wanted = session(**example)
        assert torch.equal(session(X, "c", 2.0), wanted)
        with pytest.raises(InvalidInputError, match=r"'scale' is 3\.0"):
            session(X, name="c", scale=3.0)
