"""Options that a build remembers, where they aren't what autopar writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autopar.base.errors import AutoparError
from autopar.cost import Cluster
from autopar.ir.builds.files import Build
from autopar.ir.mesh import ProcessMesh
from autopar.pipeline import CompileOptions
from autopar.pipeline.recorded import recorded, recorded_options

MESH = ProcessMesh([0, 1])


def build(options: str) -> Build:
    serial = SimpleNamespace(mesh=MESH)
    fields: dict[str, Any] = {"path": Path("b"), "options": options, "serial": serial}
    return cast(Build, SimpleNamespace(**fields))


def sound() -> str:
    return recorded(CompileOptions(mesh=MESH, cluster=Cluster.load("cpu")))


def test_sound() -> None:
    assert recorded_options(build(sound())).cluster == Cluster.load("cpu")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("memory: null", "memory: many"),
        ("memory: null", "memory: true"),
        ("memory: null", "memory_bytes: 5"),
        ("memory: null", "memory: null\n3: 4"),
        ("time_limit: null", "time_limit: [1]"),
        ("effort: 1.0", "effort: much"),
        ("phases_apart: false", "phases_apart: 0.5"),
        ('placement: "identity"', "placement: [[0], 1]"),
        ('placement: "identity"', "placement: /etc/passwd"),
        ('device: "cpu"', "device: tpu"),
        ('device: "cpu"', "device: [cpu]"),
        ("activations: []", "activations: [[a]]"),
        ("activations: []", "activations: [{a: save}]"),
        ("activations: []", "activations: 5"),
        ("cluster:", "cluster: h100\nothers:"),
        ("strategy", "*strategy"),
        ("strategy", "[" * 5000),
    ],
)
def test_odd(old: str, new: str) -> None:
    assert old in sound()
    with pytest.raises(AutoparError, match=r"b/options\.yaml"):
        recorded_options(build(sound().replace(old, new, 1)))


@pytest.mark.parametrize("text", ["5", "[]", "# nothing\n"])
def test_no_options(text: str) -> None:
    with pytest.raises(AutoparError, match=r"b/options\.yaml isn't what autopar writes"):
        recorded_options(build(text))
