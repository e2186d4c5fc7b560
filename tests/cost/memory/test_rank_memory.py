"""Predicted bytes of the rank that holds most beside those of real processes that communicate."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.analysis.profiling import profile
from autopar.cost import (
    Execution,
    kinds_of_ranks,
    memory_timeline,
    peak_bytes_of,
    peak_rank_timeline,
)
from autopar.ir.builds.files import read_build
from autopar.ir.text import parse_program
from autopar.partition.recompute import DoesNotFit
from tests.cost.memory.rank_memory_jobs import WIDTH, build, compile_step, train_tracked
from tests.runtime.job.real import run_ranks

CASES = [
    (2, "tp=2", "tensor:tp"),
    (2, "dp=2", "ddp:dp"),
    (2, "dp=2", "fsdp:dp"),
    (2, "dp=2", "zero1:dp"),
    (3, "dp=3", "fsdp:dp"),
    (4, "dp=2,tp=2", "fsdp:dp,tensor:tp"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "mesh", "strategy"), CASES)
def test_a_rank_of_a_job(tmp_path: Path, ranks: int, mesh: str, strategy: str) -> None:
    predicted = build(tmp_path / "b", mesh, strategy)
    measured = run_ranks(ranks, train_tracked, str(tmp_path / "b"))
    assert predicted == pytest.approx(max(measured), rel=0.01)
    if WIDTH % ranks == 0:
        assert predicted == pytest.approx(min(measured), rel=0.01)


@pytest.mark.slow
def test_each_rank_of_a_job_with_uneven_blocks(tmp_path: Path) -> None:
    """The last one holds most: it pads what it sends."""
    build(tmp_path / "b", "dp=3", "fsdp:dp")
    found = read_build(tmp_path / "b")
    predicted = [
        memory_timeline(
            found.deployment.programs[0],
            found.deployment.coords_of(rank),
            execution=Execution(group_sizes={"dp": 3}),
        ).peak_bytes
        for rank in range(3)
    ]
    measured = run_ranks(3, train_tracked, str(tmp_path / "b"))
    assert predicted == pytest.approx(measured, rel=0.01)
    assert predicted[0] == predicted[1] < predicted[2]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["data:pp", "auto"])
@pytest.mark.parametrize("stages", [(2, 1), (1, 2)])
def test_each_rank_of_stages_of_different_shapes(
    tmp_path: Path, stages: tuple[int, int], strategy: str
) -> None:
    options = {"accumulate": 2, "pipeline": "pp", "stages": stages}
    compile_step("pp=3", strategy, **options).save(tmp_path / "b")
    found = read_build(tmp_path / "b").deployment
    sizes = {name: max(map(len, lists)) for name, lists in found.groups.items()}
    predicted = [
        memory_timeline(
            found.program_of(rank),
            found.coords_of(rank),
            execution=Execution(group_sizes=sizes),
        ).peak_bytes
        for rank in range(3)
    ]
    measured = run_ranks(3, train_tracked, str(tmp_path / "b"))
    assert predicted == pytest.approx(measured, rel=0.01)


def test_a_limit_that_only_the_first_rank_keeps_is_not_said_to_be_held() -> None:
    unlimited = compile_step("dp=3", "fsdp:dp")
    program = unlimited.partitioned
    peaks = [memory_timeline(program, coords).peak_bytes for coords in kinds_of_ranks(program)]
    assert peaks[0] < peaks[-1]
    assert peak_rank_timeline(program).peak_bytes == profile(unlimited).peak_bytes == peaks[-1]
    between = sum(peaks) // len(peaks)
    with pytest.raises(DoesNotFit) as miss:
        compile_step("dp=3", "fsdp:dp", between)
    assert between < miss.value.least_bytes <= peaks[-1]
    fitted = compile_step("dp=3", "fsdp:dp", miss.value.least_bytes).partitioned
    assert peak_rank_timeline(fitted).peak_bytes <= miss.value.least_bytes


@pytest.mark.parametrize(("mesh", "firsts"), [("dp=2", [0]), ("dp=3", [0, 2]), ("dp=7", [0, 5, 6])])
def test_a_rank_of_each_kind_is_looked_at(mesh: str, firsts: list[int]) -> None:
    """Of 7 ranks, one has 1 of 16 rows and the last one none."""
    kinds = kinds_of_ranks(compile_step(mesh, "fsdp:dp").partitioned)
    assert [coords.get("dp", 0) for coords in kinds] == firsts


ZEROS = """
program "" partitioned
mesh dp=2, tp=3
input %x: f32[4, 6]
%y: f32[4, 6] = autopar.to_partial(self=%x, monoid="sum", index=tp)
return %y
"""


def test_a_rank_that_makes_zeros_holds_more_than_the_first_one() -> None:
    """What counts once is the first one's along an axis; the others make zeros of that size."""
    program = parse_program(ZEROS)
    (coords,) = kinds_of_ranks(program)
    assert coords == {"tp": 1}
    assert peak_bytes_of(program, [coords]) == 2 * peak_bytes_of(program, [{"tp": 0}])
    ranks = [{"dp": dp, "tp": tp} for dp in range(2) for tp in range(3)]
    assert kinds_of_ranks(program, ranks) == ({"dp": 0, "tp": 1},)
