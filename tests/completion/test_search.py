"""Search: plans equal the serial program, whatever the mesh, and come with a bound."""

from __future__ import annotations

import pytest

from autopar.annotate import parse_mesh
from autopar.completion.search import search
from autopar.cost import Cluster
from autopar.cost.evaluation import evaluate
from autopar.cost.memory import memory_timeline
from autopar.ir.errors import InvalidInputError
from autopar.pipeline import Compiled, CompileOptions, compile_program
from tests.captured import check, compiled
from tests.completion.enumerated import drawn, least_seconds
from tests.completion.test_training import language


@pytest.mark.parametrize("mesh", ["a=3", "a=2,b=2"])
def test_a_searched_step_is_that_of_one_device(mesh: str) -> None:
    captured = language("adamw")
    done = compiled(captured, mesh, "auto")
    check(captured, done, 1e-5)
    (entry,) = [entry for entry in done.report if entry.category == "search"]
    assert "no plan takes less than" in entry.detail


def check_best(seed: int) -> None:
    """Checks that search finds the best plan of a random program."""
    graph = drawn(seed)
    found = search(graph)
    best = least_seconds(graph)
    assert found.seconds == pytest.approx(best, rel=1e-9)
    assert found.bound_seconds <= best * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(30))
def test_no_plan_is_faster(seed: int) -> None:
    check_best(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(10))
def test_no_plan_is_faster_of_many_programs(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        check_best(seed)


def test_memory_is_part_of_the_plan() -> None:
    captured = language("adamw")
    mesh, cluster = parse_mesh("a=2"), Cluster.load("cpu")

    def done(strategy: str, memory: int | None = None) -> Compiled:
        options = CompileOptions(mesh, cluster, strategy, memory_bytes=memory)
        return compile_program(captured.program, options)

    def figures(of: Compiled) -> tuple[int, float]:
        seconds = evaluate(of.partitioned, cluster).serialized_seconds
        return memory_timeline(of.partitioned).peak_bytes, seconds

    peak, seconds = figures(done("auto"))
    limit = peak * 9 // 10
    within = done("auto", limit)
    less, slower = figures(within)
    assert less <= limit
    assert slower >= seconds
    check(captured, within, 1e-5)
    with pytest.raises(InvalidInputError, match="raise the limit"):
        done("auto", 1000)
