"""Real ranks: equal to the virtual mesh, and every way to fail with its message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autopar.ir.errors import RuntimeFailure
from autopar.runtime.distributed import choose_device
from autopar.runtime.processes import Processes
from autopar.runtime.virtual import VirtualMesh
from autopar.runtime.weights import WeightFile, write_weights
from tests.runtime.programs import LOOP, MLP, deploy, with_group
from tests.runtime.real import run_ranks
from tests.runtime.targets import fail_at, run_compiled, run_program


@pytest.mark.parametrize("target", [run_program, run_compiled])
def test_loops_on_two_processes(tmp_path: Path, target: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    deployment = deploy({"tp": 2}, LOOP, tp=["tp"])
    file = str(tmp_path / "w")
    write_weights(file, {"scale": torch.randn(4)})
    inputs = {"x": torch.randn(3, 4), "c": torch.randn(4)}
    with WeightFile(file) as weights:
        expected = VirtualMesh(deployment, weights).run(inputs)
    first, second = run_ranks(2, target, deployment, file, inputs)
    assert second[0] == {}
    for label, tensor in expected.items():
        assert np.allclose(first[0][label], tensor, atol=1e-6)
    pieces = np.concatenate([first[1]["last"], second[1]["last"]])
    assert np.allclose(pieces, expected["last"], atol=1e-6)


def test_uneven_pieces_in_a_placement_of_the_user(tmp_path: Path) -> None:
    """Three ranks whose blocks are not in the order of the ranks."""
    torch.manual_seed(0)
    deployment = with_group(deploy({"dp": 1, "tp": 3}, MLP, tp=["tp"]), "tp", (2, 0, 1))
    file = str(tmp_path / "w")
    write_weights(file, {"w1": torch.randn(6, 8), "w2": torch.randn(8, 5)})
    inputs = {"x": torch.randn(8, 6)}
    with WeightFile(file) as weights:
        expected = VirtualMesh(deployment, weights).run(inputs)["out"]
    outcomes = run_ranks(3, run_program, deployment, file, inputs)
    assert np.allclose(outcomes[0][0]["out"][:4], expected[:4], atol=1e-6)


SUM = """
program "sum" executable
func main {
  input %x: f32[2]
  %n: f32[2] = aten.neg.default(self=%x) loc("model.py", 3)
  %y: f32[2] = comm.all_reduce(self=%n, monoid="sum", group="tp") loc("model.py", 4)
  return %y box [2]
}
"""


@pytest.fixture
def no_weights(tmp_path: Path) -> str:
    write_weights(tmp_path / "w", {})
    return str(tmp_path / "w")


def test_a_failing_rank_ends_all_with_its_op_and_line(no_weights: str) -> None:
    outcomes = run_ranks(3, fail_at, deploy({"tp": 3}, SUM, tp=["tp"]), no_weights, "raise", 20.0)
    message = "rank 1 failed: aten.neg.default -> %n (model.py:3): out of luck"
    assert [outcome[0] for outcome in outcomes] == [message] * 3
    assert max(outcome[1] for outcome in outcomes) < 10


def test_a_killed_rank_is_named(no_weights: str) -> None:
    outcomes = run_ranks(3, fail_at, deploy({"tp": 3}, SUM, tp=["tp"]), no_weights, "kill", 20.0)
    assert outcomes[1] == -9
    reason = "lost the connection to rank 1, gone without a word (killed?)"
    for rank in (0, 2):
        message, seconds = outcomes[rank]
        assert message.endswith(f"comm.all_reduce -> %y (model.py:4): {reason}")
        assert seconds < 10


def test_a_hung_rank_is_named_after_the_time_out(no_weights: str) -> None:
    outcomes = run_ranks(2, fail_at, deploy({"tp": 2}, SUM, tp=["tp"]), no_weights, "hang", 2.0)
    message, _ = outcomes[0]
    place = "comm.all_reduce -> %y (model.py:4)"
    assert message == f"rank 0 failed: {place}: no answer within 2 s from rank 1"
    # The watch ended the hung process.
    assert outcomes[1] == 17


def test_another_program_stops_all_ranks(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", {"scale": torch.ones(4)})
    deployment = deploy({"tp": 2}, LOOP, tp=["tp"])
    digests = {1: "0123456789abcdef"}
    outcomes = run_ranks(2, run_program, deployment, str(tmp_path / "w"), {}, digests)
    assert (
        outcomes
        == [
            "! rank 1 has another program (digest 0123456789ab, the others same);"
            " give all ranks the same build and the same autopar"
        ]
        * 2
    )


def test_too_few_processes(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", {"scale": torch.ones(4)})
    (outcome,) = run_ranks(1, run_program, deploy({"tp": 2}, LOOP), str(tmp_path / "w"), {})
    assert outcome == (
        "! the build is for 2 ranks, but 1 process was started; start 2, as with"
        " torchrun --nproc-per-node 2, or compile for 1"
    )


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", {"scale": torch.ones(4)})
    deployment = deploy({"tp": 2}, LOOP)
    (outcome,) = run_ranks(1, run_program, deployment, str(tmp_path / "w"), {}, {}, {}, 1.0, size=2)
    assert outcome == "! no word from ranks [1] within 1 s of the start"


def test_wrong_inputs_are_said_as_they_are(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", {"scale": torch.ones(4)})
    deployment = deploy({"tp": 2}, LOOP, tp=["tp"])
    inputs = {"x": torch.ones(3, 4)}
    outcomes = run_ranks(2, run_program, deployment, str(tmp_path / "w"), inputs)
    assert outcomes == ["! wrong inputs:\n  - input 'c' is missing; it is f32[4]"] * 2


def test_the_device_follows_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(rank=5, size=8, local_rank=1, local_size=4)
    assert choose_device("gloo", processes).type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert str(choose_device("auto", processes)) == "cuda:1"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RuntimeFailure, match="4 ranks on this host but 2 GPUs"):
        choose_device("auto", processes)
    with pytest.raises(RuntimeFailure, match="use auto, gloo or nccl"):
        choose_device("mpi", processes)


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
    del environment["MASTER_PORT"]
    with pytest.raises(RuntimeFailure, match=r"MASTER_PORT.*start the ranks with torchrun"):
        Processes.from_environment(environment)
