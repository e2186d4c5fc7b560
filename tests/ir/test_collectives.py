"""What is declared of collectives is all there is to know of them, and everybody can use it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import autopar
from autopar.base.errors import VerificationError
from autopar.calibration.measure import _calls
from autopar.cost import Cluster, CommunicationModel, Execution, evaluate, lifetimes
from autopar.cost.algorithms import KINDS, POINT_TO_POINT
from autopar.cost.memory.collectives import _FORMULAS
from autopar.cost.summary import summarize_rank
from autopar.ir.collectives import DECLARED, Declaration, Dim, Start, declared
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.ir.verify import verify_structure
from autopar.mapping.matching import _PARTS
from autopar.mapping.traffic import traffic
from autopar.runtime.collectives.async_collectives import HALVES
from autopar.runtime.collectives.communication import COLLECTIVES
from autopar.runtime.collectives.groups import Group
from autopar.runtime.collectives.reference import _REFERENCE
from tests.runtime.collectives.cases import cases

PACKAGE = Path(autopar.__file__).parent
DECLARATIONS = PACKAGE / "ir" / "collectives.py"
MESH = ProcessMesh.of_shape((4,), ("x",))
CLUSTER = Cluster.load("cpu")


def kinds_in(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each string of a source that is a collective's kind, or begins one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and re.fullmatch(r"comm\.\w*", str(node.value)):
            yield node.lineno, str(node.value)


def test_kinds_stand_in_the_declarations_alone() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {kind}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != DECLARATIONS
        for line, kind in kinds_in(path.read_text(encoding="utf-8"))
    ]
    assert found == []
    assert {kind for _, kind in kinds_in(DECLARATIONS.read_text())} == {*DECLARED, "comm."}


@pytest.mark.parametrize("source", ["x == 'comm.a'", "x.startswith('comm.')", "f'comm.{x}'"])
def test_the_walk_sees_every_form_of_a_kind(source: str) -> None:
    assert len(list(kinds_in(source))) == 1


def test_everybody_knows_what_is_declared() -> None:
    assert COLLECTIVES.keys() == _REFERENCE.keys() == DECLARED.keys()
    assert HALVES.keys() == {each.kind for each in DECLARED.values() if each.start is not None}
    prices = {*KINDS, POINT_TO_POINT}
    for each in DECLARED.values():
        assert each.price in prices
        assert each.memory in _FORMULAS
        assert {part for dim in each.dims for part in (dim.brings, dim.gets)} <= _PARTS.keys()


def test_every_kernel_is_compared_with_its_definition() -> None:
    assert {op.kind for op, _ in cases(2)} == DECLARED.keys()


def test_every_price_is_calibrated() -> None:
    group = Group("", 4, 0, (0, 1, 2, 3), "gloo")
    assert _calls(group, torch.device("cpu"), 1).keys() == {*KINDS, POINT_TO_POINT}


def program(kind: str) -> Program:
    """Returns a program in which 4 processes join pieces of 2 elements by a kind of collective."""
    text = f"""
        program "" partitioned
        mesh x=4
        func main {{
          input %x: f32[2]
          %y: f32[8] = {kind}(self=%x, dim=0, size=8, axes=["x"])
          return %y
        }}
    """
    return parse_program(text)


@pytest.mark.parametrize(
    "ask",
    [
        verify_structure,
        lambda given: evaluate(given, CLUSTER),
        lambda given: summarize_rank(given, {"x": 0}),
        lambda given: lifetimes(given),
        lambda given: traffic(given, MESH),
    ],
)
def test_an_unknown_kind_is_refused_by_name(ask: object) -> None:
    assert callable(ask)
    ask(program("comm.all_gather"))
    with pytest.raises(VerificationError, match=r"comm\.gossip"):
        ask(program("comm.gossip"))


def test_a_new_kind_needs_nothing_but_its_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is executed: closed forms and checks find what they need there."""
    gather = declared("comm.all_gather")
    monkeypatch.setitem(DECLARED, "comm.gossip", replace(gather, kind="comm.gossip"))
    known, new = program("comm.all_gather"), program("comm.gossip")
    verify_structure(new)
    assert evaluate(new, CLUSTER).costs == evaluate(known, CLUSTER).costs
    assert evaluate(new, CLUSTER).costs[0].communication_seconds > 0
    assert lifetimes(new, {"x": 0}, Execution()).buffers == lifetimes(known).buffers
    assert [each.nbytes for each in traffic(new, MESH)] == [32]


def test_a_price_is_that_of_the_method_of_its_name() -> None:
    model = CommunicationModel(CLUSTER, MESH)
    for name in (*KINDS, POINT_TO_POINT):
        assert model.collective_seconds(name, 4096, ("x",)) == getattr(model, name)(4096, ("x",))


def test_sums_of_plain_dtypes_are_started() -> None:
    found = Declaration("comm.s", "", "", start=Start(sums_only=True))
    asked = [("sum", "bf16"), ("sum", "bool"), ("max", "f32"), (None, "f32")]
    assert [found.is_async(*each) for each in asked] == [True, False, False, False]
    assert replace(found, start=Start()).is_async(None, "bool")
    assert not replace(found, start=None).is_async("sum", "f32")


def test_needed_arguments_are_those_of_dimensions_and_more() -> None:
    dims = (Dim("dim", "block", "whole", "size"), Dim("other", "whole", "block"))
    found = Declaration("comm.s", "", "", dims, integers=("count",), members=("root",))
    assert found.needed == ("dim", "other", "size", "count", "root")
