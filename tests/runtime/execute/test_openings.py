"""Sessions opened again and again in the same processes, one after another and side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.execute.openings import ROUNDS, held, open_often, open_side_by_side
from tests.runtime.job.real import run_ranks
from tests.runtime.programs import build, deploy

ADD = """
program "add" executable
func main {{
  input %x: f32[2]
  %n: f32[2] = aten.mul.Scalar(self=%x, other={factor})
  %y: f32[2] = comm.all_reduce(self=%n, monoid="sum", group="{group}")
  return %y box [2]
}}
"""


def add_build(folder: Path, factor: float = 1.0) -> Path:
    """Returns a build for four ranks that sums over the second axis of two."""
    text = ADD.format(factor=factor, group="tp")
    return build(folder, deploy({"dp": 2, "tp": 2}, text, tp=["tp"]), {})


def damaged(folder: Path) -> Path:
    """Returns a build whose program can't be read."""
    found = add_build(folder)
    program = found / "programs" / "0.pb"
    program.write_bytes(program.read_bytes()[::-1])
    return found


@pytest.mark.parametrize("own_group", [False, True])
def test_sessions_one_after_another_with_failing_ones_between(
    tmp_path: Path, own_group: bool
) -> None:
    """Each opening stands alone, also after one that failed on some of the ranks."""
    good, other = add_build(tmp_path / "good"), add_build(tmp_path / "other", 2.0)
    bad = damaged(tmp_path / "bad")
    outcomes = run_ranks(4, open_often, good, other, bad, own_group)
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, list), outcome
        kinds = [kind for kind, _ in outcome]
        assert kinds == ["sum", "other build", "sum", "damaged"] * ROUNDS + ["sum"]
        for kind, found in outcome:
            if kind == "sum":
                assert found == [2.0, 2.0]
            elif kind == "damaged":
                said = "" if rank == 2 else "rank 2 failed: "
                assert found.startswith(f"{said}{bad / 'programs' / '0.pb'} is damaged")
            else:
                assert found.startswith("rank 1 has another program (digest ")


@pytest.mark.parametrize("own_group", [False, True])
def test_two_sessions_side_by_side(tmp_path: Path, own_group: bool) -> None:
    """The one that was opened first is closed first, and the other one goes on."""
    builds = [add_build(tmp_path / "one"), add_build(tmp_path / "two", 3.0)]
    outcomes = run_ranks(4, open_side_by_side, *builds, own_group)
    assert outcomes == [[2.0, 6.0, 2.0, 6.0, 6.0, own_group]] * 4


def test_sessions_that_were_closed_hold_no_files(tmp_path: Path) -> None:
    """Only of the last ones, which not all ranks may have closed yet, some may still be open."""
    for found in run_ranks(4, held, add_build(tmp_path / "b")):
        assert found[-1] <= found[2] + 6, found
