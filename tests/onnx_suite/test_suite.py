"""onnx's backend suite: the import on every eighth case of its static profile, all passes on a few.

`make onnx-suite` runs all passes on the whole profile, and a test that is slow the import.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import fx

from autopar.frontend.onnx.importing import record_model
from autopar.frontend.onnx.model.load import load
from autopar.frontend.onnx.model.problems import ModelError
from autopar.frontend.onnx.ops import DEFAULT_DOMAIN, TABLES, find_translation
from autopar.frontend.onnx.trace import walk
from autopar.frontend.onnx.trace.values import Translation
from tests.onnx_suite.cases import Array, Case, as_tensor, load_cases
from tests.onnx_suite.judge import Judge, Tensors, difference
from tests.onnx_suite.opened import OpenJudge
from tests.onnx_suite.profile import freeze, outside

SMALL_KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
IN_PROFILE = 1622
PER_FAMILY = 2
SHARE = 8
"""Every such case is imported; names that follow one another are mostly of one operator."""

FINER = {"test_attention_4d_causal_fp16_expanded", "test_dft_inverse", "test_dft_inverse_opset19"}
"""Cases whose expected outputs are rounded more than their tolerance allows; see `exact`."""
DRAWN = {
    *(f"test_bernoulli{which}" for which in ("", "_double", "_seed")),
    *(f"test_bernoulli{which}_expanded" for which in ("", "_double", "_seed")),
    *(f"test_training_dropout{which}" for which in ("", "_default", "_default_mask", "_mask")),
}
"""Cases of random numbers."""
REFUSED = 9
"""Cases that the import refuses: images to decode."""

OTHER_BODIES = ("Bernoulli", "Range")
"""Operators that onnx defines by bodies which aren't what we want; their translations say why."""


@pytest.fixture(scope="module")
def everything() -> list[Case]:
    return load_cases(*SMALL_KINDS)


@pytest.fixture(scope="module")
def profile(everything: list[Case]) -> list[Case]:
    return [case for case in everything if not outside(case)]


@pytest.fixture
def judge(profile: list[Case], tmp_path: Path) -> Judge:
    return Judge("2x2", {case.name: case.proto for case in profile}, tmp_path)


def sample(cases: list[Case]) -> Iterator[Case]:
    """Yields a few cases of each family of operators, and of those that are defined by others."""
    families = {name: at for at, table in enumerate(TABLES) for name in table}
    groups: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        groups[families.get(case.proto.graph.node[0].op_type, -1)].append(case)
    for family in sorted(groups):
        yield from random.Random(family).sample(
            groups[family], min(PER_FAMILY, len(groups[family]))
        )


@pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.slow)])
def test_import(share: int, profile: list[Case], tmp_path: Path) -> None:
    assert len(profile) == IN_PROFILE
    wrong, refused = imported(profile[::share], profile, tmp_path)
    assert wrong.keys() <= FINER | DRAWN, wrong
    assert refused <= REFUSED


def test_import_outside_of_the_profile(everything: list[Case], tmp_path: Path) -> None:
    cases = [case for case in everything if outside(case)]
    wrong, refused = imported(cases, cases, tmp_path)
    assert not wrong
    assert refused < len(cases) / 2


def imported(cases: list[Case], everything: list[Case], folder: Path) -> tuple[dict[str, str], int]:
    """Returns what is wrong with cases that are imported and run eagerly, and how many are not."""
    operators = {case.name: case.proto for case in everything}
    path = folder / "model.onnx"
    wrong, refused = {}, 0
    for case in cases:
        proto, inputs = freeze(case, operators)
        path.write_bytes(proto.SerializeToString())
        try:
            found = difference(case, case.outputs, run_graph(path, inputs))
        except ModelError:
            refused += 1
        else:
            wrong |= {case.name: found} if found else {}
    return wrong, refused


def run_graph(path: Path, inputs: dict[str, Array]) -> Tensors:
    """Runs the graph that the import records of a model, eagerly: it isn't lowered."""
    shapes = {n: array.shape for n, array in inputs.items() if isinstance(array, np.ndarray)}
    recorded = record_model(load(path), shapes, {})
    trace = recorded.recorder.trace
    given = {value.place: as_tensor(inputs[name]) for name, value in recorded.inputs.items()}
    given |= {stored.place: stored.value.tensor for stored in recorded.recorder.stored}
    given |= trace.constants
    placeholders = trace.graph.find_nodes(op="placeholder")
    interpreter = fx.Interpreter(torch.nn.Module(), graph=trace.graph)
    with torch.no_grad():
        results = interpreter.run(*(given.get(node) for node in placeholders))
    labels = [value.name for value in recorded.model.proto.graph.output]
    return dict(zip(labels, results, strict=True))


def test_rows_say_more_than_bodies(
    profile: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = {case.proto.graph.node[0].op_type: case for case in profile if is_of_one_node(case)}
    rows = [name for name in cases if name in DEFAULT_DOMAIN and has_bodies(name)]
    assert len(rows) > 10
    with_rows = {name: count_ops(cases[name], tmp_path) for name in rows}
    for name in rows:
        monkeypatch.setattr(walk, "find_translation", without(name))
        more = count_ops(cases[name], tmp_path) > with_rows[name]
        assert more == (name not in OTHER_BODIES), name


def is_of_one_node(case: Case) -> bool:
    return len(case.proto.graph.node) == 1


def has_bodies(name: str) -> bool:
    """Whether all versions of an operator have bodies."""
    history = [each for each in onnx.defs.get_all_schemas_with_history() if each.name == name]
    # onnx's type hints lack what schemas tell of functions.
    versions: list[Any] = [each for each in history if each.domain == ""]
    return all(each.has_function or each.has_context_dependent_function for each in versions)


def without(name: str) -> Callable[[str, str, int], Translation | None]:
    def find(domain: str, op_type: str, opset: int) -> Translation | None:
        return None if op_type == name else find_translation(domain, op_type, opset)

    return find


def count_ops(case: Case, folder: Path) -> int:
    """Returns how many ops the import records of a case."""
    proto, inputs = freeze(case, {})
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    shapes = {n: array.shape for n, array in inputs.items() if isinstance(array, np.ndarray)}
    return len(record_model(load(path), shapes, {}).recorder.trace.graph.nodes)


def test_sample_on_2x2(profile: list[Case], judge: Judge) -> None:
    verdicts = {case.name: judge.judge(case) for case in sample(profile)}
    bad = {n: v.detail for n, v in verdicts.items() if v.kind in ("wrong", "error")}
    assert not bad
    assert sum(verdict.split > 0 for verdict in verdicts.values()) > len(verdicts) / 2


def test_sample_with_open_sizes(profile: list[Case], tmp_path: Path) -> None:
    judge = OpenJudge("2x2", {case.name: case.proto for case in profile}, tmp_path)
    chosen = [case for case in sample(profile) if case.proto.graph.node[0].op_type != "Attention"]
    verdicts = {case.name: judge.judge(case) for case in chosen[::3]}
    bad = {n: v.detail for n, v in verdicts.items() if v.kind in ("wrong", "error")}
    assert not bad
    is_open = [verdict.kind == "pass" and not verdict.frozen for verdict in verdicts.values()]
    assert sum(is_open) > len(verdicts) / 3


def test_open_judge_notices(profile: list[Case], tmp_path: Path) -> None:
    judge = OpenJudge("2x2", {}, tmp_path)
    (case,) = (case for case in profile if case.name == "test_add")
    doubled = {name: 2 * array for name, array in case.outputs.items()}
    wrong = Case(case.name, case.kind, case.proto, case.inputs, doubled, case.rtol, case.atol)
    assert judge.judge(case).kind == "pass"
    assert judge.judge(wrong).kind == "wrong"


def test_judge_notices(profile: list[Case], judge: Judge) -> None:
    (case,) = (case for case in profile if case.name == "test_add")
    doubled = {name: 2 * array for name, array in case.outputs.items()}
    wrong = Case(case.name, case.kind, case.proto, case.inputs, doubled, case.rtol, case.atol)
    assert judge.judge(case).kind == "pass"
    assert judge.judge(wrong).kind == "wrong"


@pytest.mark.slow
def test_whole_profile_on_2x2(profile: list[Case], judge: Judge) -> None:
    verdicts = {case.name: judge.judge(case) for case in profile}
    bad = {n: v.detail for n, v in verdicts.items() if v.kind in ("wrong", "error")}
    assert not bad
    assert sum(verdict.kind == "finer" for verdict in verdicts.values()) <= len(FINER)
    assert sum(verdict.kind == "pass" for verdict in verdicts.values()) >= 1590
