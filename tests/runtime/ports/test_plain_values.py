"""What is no tensor in a call is part of the program: it is as in the example, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.base.errors import InvalidInputError
from autopar.ir import program_pb2 as pb
from autopar.ir.leaves import leaves, recorded
from autopar.ir.program import Example
from autopar.ir.serde import program_from_bytes, program_to_bytes
from autopar.ir.text.parse import parse_program
from autopar.ir.text.print import print_program
from autopar.runtime.ports.batches import label_batch, label_call

X = torch.ones(3, 4)


class Scaled(nn.Module):
    """Has arguments that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(
        self, x: Tensor, scale: float = 1.0, double: bool = False, sizes: Any = None
    ) -> Tensor:
        y: Tensor = self.linear(x) * scale
        return y * 2 if double else y


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("plain") / "build"
    autopar.compile(Scaled(), {"x": X, "scale": 3.0}, mesh=1).save(folder)
    with autopar.load(folder) as found:
        yield found


def test_a_call_as_the_example_is_answered(session: Any) -> None:
    wanted = session(X, 3.0)
    for other in (
        session(X, scale=3.0),
        session(scale=np.float64(3.0), x=X),
        session(X, 3.0, False, None),
        session(X, 3.0, sizes=None),
    ):
        assert torch.equal(other, wanted)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {"scale": 2.0}, r"'scale' is 2\.0, the program was compiled with 3\.0; what is no"),
        ((2.0,), {}, r"'scale' is 2\.0, the program was compiled with 3\.0"),
        ((3,), {}, r"'scale' is 3, the program was compiled with 3\.0"),
        ((), {}, r"'scale' is left out, the program was compiled with 3\.0"),
        ((3.0, True), {}, "'double' is True, the program was compiled with False"),
        ((3.0,), {"sizes": [1, 2]}, r"'sizes' is \[1, 2\], the program was compiled with None"),
        ((3.0,), {"nonsense": 5}, "'nonsense' is 5, the program was compiled without it"),
        (
            (3.0, False, None, "hello"),
            {},
            "argument 5 is 'hello', the program was compiled",
        ),
        ((torch.ones(()),), {}, "the call has 2 tensors, the program takes 1: x; nothing takes"),
    ],
)
def test_another_plain_value_is_refused(session: Any, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        session(X, *args, **kwargs)
    assert session(X, 3.0).shape == (3, 2)


def step(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(batch["x"], batch["scale"]).pow(2).mean() * batch["more"][0]
    return loss


BATCH = {"x": X, "scale": 1.0, "more": (2.0, "a"), "kind": torch.float32}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("plain") / "build"
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = {"training_step": step, "optimizer": optimizer}
    autopar.compile(model, BATCH, mesh=1, **batches).save(folder)  # type: ignore[arg-type]
    with autopar.load(folder) as found:
        yield found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 5.0}, r"batch\['scale'\] is 5\.0, the program was compiled with 1\.0"),
        ({"more": (2.0, "b")}, r"batch\['more'\] is \(2\.0, 'b'\), .* with \(2\.0, 'a'\)"),
        (
            {"kind": torch.float64},
            r"batch\['kind'\] is <torch.dtype torch.float64>, .* with <torch.dtype",
        ),
        ({"also": None}, r"batch\['also'\] is None, the program was compiled without it"),
    ],
)
def test_a_batch_with_another_plain_value_is_refused(
    trainer: Any, change: dict[str, Any], message: str
) -> None:
    before = trainer.steps
    with pytest.raises(InvalidInputError, match=message):
        trainer.step({**BATCH, **change})
    assert trainer.steps == before
    assert trainer.step({**BATCH, "more": [2.0, "a"]}).isfinite()
    assert trainer.steps == before + 1


def test_lists_in_the_place_of_tensors_are_named(trainer: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"batch\['x'\] is a list and no tensor: give"):
        trainer.step({**BATCH, "x": X.tolist()})
    with pytest.raises(InvalidInputError, match=r"batch\['x'\] is None and no tensor"):
        trainer.step({**BATCH, "x": None})


def test_surplus_tensors_are_called_as_the_user_gave_them() -> None:
    with pytest.raises(InvalidInputError, match="nothing takes 'kep'"):
        label_call((X,), {"kep": X}, ["x"])
    with pytest.raises(InvalidInputError, match="nothing takes argument 2"):
        label_call((X, X), {}, ["x"])
    with pytest.raises(InvalidInputError, match=r"nothing takes batch\[1\]\['a'\]"):
        label_batch((X, {"a": X}), ["x"])


ODD = {
    "a nested tensor": lambda: torch.nested.nested_tensor([X, X]),
    "the layout sparse_coo": lambda: X.to_sparse(),
    "the layout sparse_csr": lambda: X.to_sparse_csr(),
    "on the meta device": lambda: X.to("meta"),
    "the layout _mkldnn": lambda: X.to_mkldnn(),
    "a quantized tensor": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("kind", ODD)
def test_tensors_that_are_not_plain_are_refused(session: Any, trainer: Any, kind: str) -> None:
    if kind == "the layout _mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    odd = ODD[kind]()
    calls = (
        lambda: session(odd, 3.0),
        lambda: session.run({"x": odd}),
        lambda: trainer.step({**BATCH, "x": odd}),
        lambda: trainer.step({**BATCH, "x": odd}, local=True),
    )
    for call in calls:
        with pytest.raises(InvalidInputError, match=rf"input 'x' is .*{kind}"):
            call()
    assert session(X, 3.0).shape == (3, 2)
    assert trainer.step(BATCH).isfinite()


def test_a_build_without_the_record_takes_all_plain_values() -> None:
    program = parse_program("input %x: f32[2] return %x")
    file = pb.File.FromString(program_to_bytes(program))
    assert file.format_version == 8
    assert file.minimum_reader_version == 2
    file.format_version = 7
    file.program.ClearField("example")
    old = program_from_bytes(file.SerializeToString())
    assert old.example is None
    assert program_from_bytes(program_to_bytes(old)) == old
    assert parse_program(print_program(old)) == old
    assert label_call((X, 3, "a"), {"b": None}, ["x"], old.example).keys() == {"x"}
    with pytest.raises(InvalidInputError, match="argument 2 is 3, the program was compiled"):
        label_call((X, 3), {}, ["x"], program.example)


def test_the_record_of_a_call() -> None:
    compiled = autopar.compile(Scaled(), (X, 3.0), mesh=1)
    example = Example(
        (("scale", 3.0),), (("double", False), ("sizes", None)), ("x", "scale", "double", "sizes")
    )
    assert compiled.source.example == example
    assert all(program.example == example for program in compiled.deployment.programs)


def test_a_list_without_tensors_is_one_value() -> None:
    found = dict(leaves({"a": [1, [2, 3]], "b": (X, [4]), "c": {"d": None}, "e": []}))
    assert {path: each for path, each in found.items() if each is not X} == {
        ("a",): [1, [2, 3]],
        ("b", 1): [4],
        ("c", "d"): None,
        ("e",): [],
    }


def test_objects_are_noted_by_their_types() -> None:
    assert recorded(object()) == "<builtins.object>"
    assert recorded(torch.device("cpu")) == "<torch.device device(type='cpu')>"
    assert recorded([1, (True, None)]) == (1, (True, None))
