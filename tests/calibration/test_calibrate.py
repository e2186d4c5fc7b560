"""`calibrate`: what it writes is a cluster that the compiler reads."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import autopar
from autopar.base.errors import InvalidInputError
from autopar.calibration.calibrating import write_cluster
from autopar.calibration.calibration import Calibration
from autopar.calibration.device import slowest_op_rates
from autopar.calibration.host import measure_host
from autopar.calibration.levels import levels_of
from autopar.cost import Cluster, CommunicationModel
from autopar.cost.links import HostLink
from autopar.cost.rates import OpRate
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops.families import FAMILIES
from autopar.runtime.job.processes import Processes
from tests.calibration import ranks
from tests.cli import command
from tests.runtime.job.real import run_ranks


def test_one_process_measures_its_device(tmp_path: Path) -> None:
    """Every family of ops, and what is written is read back."""
    found = autopar.calibrate(device="cpu", clock="cpu", seconds=0.002, name="mine")
    assert found is not None
    cluster = found.cluster
    assert cluster.name == "mine"
    assert cluster.flops("f32") > 1e8
    assert cluster.bytes_per_second > 1e7
    assert cluster.links == Cluster.load("cpu").links
    assert "links      not measured by one process: those of 'cpu'" in str(found)
    assert cluster.host_link is cluster.host_memory_bytes_per_second is None
    path = tmp_path / "cluster.yaml"
    write_cluster(found, path)
    assert Cluster.load(path) == cluster
    assert {rate.family for rate in cluster.op_rates} == set(FAMILIES)
    for rate in cluster.op_rates:
        least, most = rate.rates[0][0], rate.rates[-1][0]
        assert 0 < rate.seconds(least / 2) == rate.seconds(least) <= rate.seconds(most)
        assert rate.seconds(2 * most) == pytest.approx(2 * rate.seconds(most))


def test_transfers_to_the_host_are_measured_in_both_directions() -> None:
    """As on an accelerator; on a CPU they are copies."""
    rates = measure_host(torch.device("cpu"), 0.02)
    assert 0 < rates.alpha_seconds < 1e-2
    assert 1e-13 < rates.beta_seconds_per_byte < 1e-7
    assert 1e-13 < rates.seconds_per_byte < 1e-7
    link = HostLink("host", rates.alpha_seconds, rates.beta_seconds_per_byte)
    cluster = replace(
        Cluster.load("cpu"),
        host_link=link,
        host_memory_bytes_per_second=1 / rates.seconds_per_byte,
    )
    shown = str(Calibration(cluster, {}, 1))
    assert "host       " in shown
    assert "it updates what waits there at " in shown


def test_processes_measure_links_and_write_what_the_compiler_reads(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    shown = command.process("calibrate", "--processes", "2", "--seconds", "0.002", "-o", path)
    assert shown.returncode == 0, shown.stderr
    cluster = Cluster.load(path)
    assert (cluster.name, cluster.devices) == (platform.node(), 2)
    (level,) = cluster.links
    kinds = [each.kind for each in level.collectives]
    assert kinds == ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"]
    assert all(each.alpha_seconds > 0 for each in level.collectives)
    assert "typical error" in shown.stdout
    assert "all_reduce" in path.read_text().partition("name:")[0]
    build = command.compiled(tmp_path, "--mesh", "2", "--strategy", "data", "--cluster", path)
    assert command.autopar("explain", build).output.startswith(f"model on {platform.node()}: ")


def test_a_rank_that_does_not_come_is_named() -> None:
    (said,) = run_ranks(1, ranks.without_the_others, size=2)
    assert said == (
        "! rank 1 failed: it did not come within 0.5 s of the start; start all 2 processes, look at"
        " what the missing ones say, and start them at the same time if they take longer"
    )


def test_a_rank_that_ends_while_it_measures_is_named() -> None:
    said, code = run_ranks(2, ranks.ends_between)
    assert code == 0
    assert said.startswith("! rank 1 failed: it ended without a word (killed?); last seen ")


def test_what_fails_on_one_rank_is_said_by_all() -> None:
    first, second = run_ranks(2, ranks.finds_no_memory)
    assert first == second == "! rank 1 failed: no memory"


def levels(cluster: Cluster) -> list[tuple[str, int]]:
    return [(level.name, level.size) for level in cluster.links]


@pytest.mark.slow
def test_two_launchers_are_two_hosts(tmp_path: Path) -> None:
    """Under torchrun, of two nodes of two processes each."""
    path = tmp_path / "cluster.yaml"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node"]
    words += ["2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    measured = ["-m", "autopar", "calibrate", "--backend", "gloo", "-q", "-o", str(path)]
    nodes = [
        subprocess.Popen(
            [*words, "--node-rank", str(node), *measured],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    outputs = [node.communicate(timeout=600)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    cluster = Cluster.load(path)
    assert levels(cluster) == [("host", 2), ("network", 2)]
    model = CommunicationModel(cluster, ProcessMesh.of_shape((2, 2), ("dp", "tp")))
    both = model.algorithms("all_reduce", 2**20, ["dp", "tp"])
    assert [way.level for way in both] == ["host", "network"]
    assert all(way.seconds > 0 for way in both)


@pytest.mark.slow
def test_levels_that_the_launcher_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    words = ("--processes", "4", "--levels", "switch=2,rack=2", "-o", path)
    shown = command.process("calibrate", *words)
    assert shown.returncode == 0, shown.stderr
    assert levels(Cluster.load(path)) == [("switch", 2), ("rack", 2)]
    assert "links switch" in shown.stdout
    assert "links rack" in shown.stdout


def test_ranks_are_grouped_by_level() -> None:
    found = levels_of(Processes(size=16, local_size=8))
    assert [(each.name, each.size, each.stride) for each in found] == [
        ("host", 8, 1),
        ("network", 2, 8),
    ]
    assert [each.counts for each in found] == [[2, 4, 8], [2]]
    racks = levels_of(Processes(size=24, local_size=24), "host=2, rack=4,spine=3")
    assert [each.stride for each in racks] == [1, 2, 8]
    assert levels_of(Processes()) == []


@pytest.mark.parametrize(
    ("processes", "text", "message"),
    [
        (Processes(size=6, local_size=4), "", "6 processes aren't 4 on each host"),
        (Processes(size=8), "host=2,rack=2", "the levels join 2 x 2 processes, and there are 8"),
        (Processes(size=4), "host:4", "write the name and size of each"),
        (Processes(size=4), "host=0", "write the name and size of each"),
    ],
)
def test_levels_that_do_not_fit(processes: Processes, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        levels_of(processes, text)


def test_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="between 1 and 64"):
        autopar.calibrate(processes=0)
    nowhere = command.autopar("calibrate", "-o", tmp_path / "none" / "c.yaml")
    assert nowhere.exit_code == 1
    assert "there is no folder" in nowhere.output
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(InvalidInputError, match="leave out --processes"):
        autopar.calibrate(processes=2)


def test_ranks_agree_on_the_slowest_of_each_work() -> None:
    fast = OpRate("product", ((10.0, 5.0), (100.0, 8.0)), "f32", 4.0)
    slow = OpRate("product", ((10.0, 2.0),), "f32", 3.0)
    (found,) = slowest_op_rates([(fast,), (slow,)])
    assert found == OpRate("product", ((10.0, 2.0),), "f32", 4.0)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"device": "cpu", "clock": "events"}, "the clock 'events' can't tell what cpu takes"),
        ({"device": "cpu", "backend": "nccl"}, "doesn't go with the device 'cpu'"),
        ({"device": "tpu"}, "no device 'tpu': there are cpu, cuda"),
        ({"clock": "sun", "device": "cpu"}, "no clock 'sun': there are wall, cpu, events"),
    ],
)
def test_devices_and_clocks_that_do_not_fit(said: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        autopar.calibrate(**said)
