"""Real ranks: equal to the virtual mesh, and every way to fail with its message."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from autopar.base.errors import RuntimeFailure
from autopar.ir.builds.files import read_build
from autopar.runtime.agree.handshake import Identity, verdict
from autopar.runtime.api import run
from autopar.runtime.job.processes import Processes
from tests.runtime.execute.targets import (
    fail_at,
    fail_late,
    groups_with_variant,
    opened_otherwise,
    run_compiled,
    run_program,
)
from tests.runtime.job.real import run_ranks
from tests.runtime.programs import LOOP, MLP, build, deploy, with_group


@pytest.mark.parametrize("target", [run_program, run_compiled])
def test_loops_on_two_processes(tmp_path: Path, target: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    deployment = deploy({"tp": 2}, LOOP, tp=["tp"])
    folder = build(tmp_path / "b", deployment, {"scale": torch.randn(4)})
    inputs = {"x": torch.randn(3, 4), "c": torch.randn(4)}
    expected = run(folder, inputs, virtual=True)
    first, second = run_ranks(2, target, [folder], inputs)
    assert second[0] == {}
    for label, tensor in expected.items():
        assert np.allclose(first[0][label], tensor, atol=1e-6)
    pieces = np.concatenate([first[1]["last"], second[1]["last"]])
    assert np.allclose(pieces, expected["last"], atol=1e-6)


def test_uneven_pieces_and_groups_in_a_placement_of_the_user(tmp_path: Path) -> None:
    """Six ranks in two groups, whose blocks are not in the order of the ranks."""
    torch.manual_seed(0)
    deployment = deploy({"dp": 2, "tp": 3}, MLP, tp=["tp"])
    deployment = with_group(deployment, "tp", (2, 0, 1), (3, 5, 4))
    weights = {"w1": torch.randn(6, 8), "w2": torch.randn(8, 5)}
    folder = build(tmp_path / "b", deployment, weights)
    inputs = {"x": torch.randn(8, 6)}
    expected = run(folder, inputs, virtual=True)["out"]
    outcomes = run_ranks(6, run_program, [folder], inputs)
    assert np.allclose(outcomes[0][0]["out"], expected, atol=1e-6)
    for rank, outcome in enumerate(outcomes):
        rows = expected[:4] if rank < 3 else expected[4:]
        assert np.allclose(outcome[1]["out"], rows, atol=1e-6)


SUM = """
program "sum" executable
func main {
  input %x: f32[2]
  %n: f32[2] = aten.neg.default(self=%x) loc("model.py", 3)
  %y: f32[2] = comm.all_reduce(self=%n, monoid="sum", group="tp") loc("model.py", 4)
  return %y box [2]
}
"""


def sum_build(folder: Path, mesh: dict[str, int]) -> Path:
    return build(folder / "b", deploy(mesh, SUM, tp=["tp"]), {})


def test_programs_for_other_shapes_share_process_groups(tmp_path: Path) -> None:
    deployment = with_group(deploy({"tp": 3}, SUM, tp=["tp"]), "tp", (0, 1), (2,))
    folder = build(tmp_path / "b", deployment, {})
    assert run_ranks(3, groups_with_variant, folder) == [(2, 2), (2, 2), (1, 1)]


def loop_build(folder: Path, ranks: int = 2, scale: float = 1.0) -> Path:
    return build(folder, deploy({"tp": ranks}, LOOP, tp=["tp"]), {"scale": torch.ones(4) * scale})


def test_a_failing_rank_ends_all_with_its_op_and_line(tmp_path: Path) -> None:
    outcomes = run_ranks(3, fail_at, sum_build(tmp_path, {"tp": 3}), "raise", 20.0)
    message = "rank 1 failed: aten.neg.default -> %n (model.py:3): out of luck"
    assert [outcome[0] for outcome in outcomes] == [message] * 3
    assert max(outcome[1] for outcome in outcomes) < 10


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    outcomes = run_ranks(3, fail_at, sum_build(tmp_path, {"tp": 3}), "kill", 20.0)
    assert outcomes[1] == -9
    place = r"comm.all_reduce -> %y \(model.py:4\)"
    for rank in (0, 2):
        message, seconds = outcomes[rank]
        assert re.fullmatch(
            r"rank 1 failed: it ended without a word \(killed\?\); last seen \d+ s ago .+;"
            rf" rank [02] lost it in step 0 at {place}",
            message,
        )
        assert seconds < 10


def test_the_rank_that_serves_the_store_may_be_killed(tmp_path: Path) -> None:
    mesh = {"tp": 3}
    outcomes = run_ranks(3, fail_at, sum_build(tmp_path, mesh), "kill", 20.0, 0)
    assert outcomes[0] == -9
    for message, seconds in outcomes[1:]:
        assert message == (
            "rank 0 failed: it ended without a word (killed?), and the store with it"
        )
        assert seconds < 10


def test_a_hung_rank_is_named_after_the_time_out(tmp_path: Path) -> None:
    outcomes = run_ranks(2, fail_at, sum_build(tmp_path, {"tp": 2}), "hang", 2.0)
    message, _ = outcomes[0]
    place = "comm.all_reduce -> %y (model.py:4)"
    assert message.startswith(
        f"rank 1 failed: it did not arrive at {place} within 2 s;"
        " it has been in step 0 at aten.neg.default -> %n (model.py:3) for "
    )
    # The watch ended the hung process.
    assert outcomes[1] == 17


def test_a_rank_outside_a_run_is_left_alone_until_the_next(tmp_path: Path) -> None:
    outcomes = run_ranks(2, fail_late, sum_build(tmp_path, {"tp": 2}))
    assert outcomes == ["! rank 1 failed: out of luck"] * 2


def test_another_program_stops_all_ranks(tmp_path: Path) -> None:
    builds = [loop_build(tmp_path / "a"), loop_build(tmp_path / "b", scale=2.0)]
    usual, other = (read_build(folder).digest[:12] for folder in builds)
    outcomes = run_ranks(3, run_program, [builds[0], builds[1], builds[0]], {})
    assert (
        outcomes
        == [
            f"! rank 1 has another program (digest {other}, the others {usual});"
            " give all ranks the same build, options and autopar"
        ]
        * 3
    )


def test_a_build_for_another_number_of_ranks(tmp_path: Path) -> None:
    builds = [loop_build(tmp_path / "a"), loop_build(tmp_path / "b", ranks=4)]
    outcomes = run_ranks(2, run_program, builds, {})
    assert (
        outcomes
        == [
            "! rank 1 has a build for 4 ranks, the others one for 2;"
            " give all ranks the same build, options and autopar"
        ]
        * 2
    )


def test_another_version_is_named() -> None:
    same, newer = Identity("d", 2, "0.1.0"), Identity("d", 2, "0.2.0")
    said = verdict({0: same, 1: newer, 2: same}, 3)
    assert said.startswith("rank 1 runs autopar 0.2.0, the others 0.1.0; ")


def test_other_weights_and_options_stop_all_ranks(tmp_path: Path) -> None:
    folder, files = loop_build(tmp_path / "b"), [tmp_path / "a.st", tmp_path / "c.st"]
    for number, file in enumerate(files):
        save_file({"scale": torch.full((4,), float(number))}, file)
    outcomes = run_ranks(2, opened_otherwise, folder, files)
    assert outcomes[0] == outcomes[1]
    weights, compiled = outcomes[0]
    assert "rank 1 was opened with cpu, torch_compile=False, weights=" in weights
    assert ", the others with cpu, torch_compile=False, weights=" in weights
    assert "torch_compile=True, weights=none, the others with cpu, torch_compile=False" in compiled


def test_a_damaged_build_on_one_rank_stops_all(tmp_path: Path) -> None:
    builds = [loop_build(tmp_path / "a"), loop_build(tmp_path / "b")]
    damaged = builds[1] / "programs" / "0.pb"
    damaged.write_bytes(damaged.read_bytes()[::-1])
    first, second = run_ranks(2, run_program, builds, {})
    assert first.startswith(f"! rank 1 failed: {damaged} is damaged")
    assert second.startswith(f"! {damaged} is damaged")


def test_too_few_processes(tmp_path: Path) -> None:
    (outcome,) = run_ranks(1, run_program, [loop_build(tmp_path / "a")], {})
    assert outcome == (
        "! the build is for 2 ranks, but 1 process was started; start 2, as with"
        " torchrun --nproc-per-node 2, or compile for 1"
    )


def test_too_many_processes(tmp_path: Path) -> None:
    outcomes = run_ranks(3, run_program, [loop_build(tmp_path / "a")], {})
    message = (
        "! the build is for 2 ranks, but 3 processes were started; start 2, as with"
        " torchrun --nproc-per-node 2, or compile for 3"
    )
    assert outcomes == [message] * 3


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    (outcome,) = run_ranks(1, run_program, [loop_build(tmp_path / "a")], {}, 20.0, 1.0, size=2)
    assert outcome == (
        "! rank 1 failed: it did not come within 1 s of the start; start all 2 processes, look at"
        " what the missing ones say, and give start_timeout= if they take longer"
    )


def test_wrong_inputs_are_said_as_they_are(tmp_path: Path) -> None:
    inputs = {"x": torch.ones(3, 4)}
    outcomes = run_ranks(2, run_program, [loop_build(tmp_path / "a")], inputs)
    assert outcomes == ["! wrong inputs:\n  - input 'c' is missing; it is f32[4]"] * 2


def test_what_torchrun_says_is_read() -> None:
    environment = {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "host",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": "1",
    }
    expected = Processes(3, 8, 1, 2, "host", 29500, True, "autopar/job/1")
    assert Processes.from_environment(environment) == expected
    assert Processes.from_environment({}) == Processes()
    # The ranks of a host that has come later.
    later = {**environment, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    first = {**later, "TORCHELASTIC_RESTART_COUNT": "0"}
    assert Processes.from_environment(later) == Processes.from_environment(first)
    assert Processes.from_environment(later).prefix == "autopar/job"
    del environment["MASTER_PORT"]
    with pytest.raises(RuntimeFailure, match=r"MASTER_PORT.*start the ranks with torchrun"):
        Processes.from_environment(environment)
