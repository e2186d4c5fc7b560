"""`calibrate`: what it writes is a cluster that the compiler reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import autopar
from autopar.cost import Cluster
from autopar.ir.errors import InvalidInputError
from tests.cli import command


def test_one_process_measures_its_device() -> None:
    found = autopar.calibrate(backend="gloo", seconds=0.02, name="mine")
    assert found is not None
    cluster = found.cluster
    assert cluster.name == "mine"
    assert cluster.flops("f32") > 1e8
    assert cluster.bytes_per_second > 1e7
    assert cluster.links == Cluster.load("cpu").links
    assert "links      not measured by one process: those of 'cpu'" in str(found)


def test_processes_measure_links_and_write_what_the_compiler_reads(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    shown = command.process("calibrate", "--processes", "2", "-o", path, "--name", "pair")
    assert shown.returncode == 0, shown.stderr
    cluster = Cluster.load(path)
    assert (cluster.name, cluster.devices) == ("pair", 2)
    (level,) = cluster.links
    kinds = [each.kind for each in level.collectives]
    assert kinds == ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"]
    assert all(each.alpha_seconds > 0 for each in level.collectives)
    assert "typical error" in shown.stdout
    assert "all_reduce" in path.read_text().partition("name:")[0]
    build = command.compiled(tmp_path, "--mesh", "2", "--cluster", path)
    assert command.autopar("explain", build).output.startswith("model on pair: ")


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
