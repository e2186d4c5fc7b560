"""The shape of a mesh is searched: as good as trying all, and said in the report."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn

import autopar
from autopar.annotate import apply_mesh, parse_mesh
from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.completion import Complete
from autopar.completion.search.learned import CLOSE
from autopar.completion.search.watch import Watch
from autopar.cost import Cluster
from autopar.cost.memory.timeline import memory_timeline
from autopar.frontend.torch import Recipe, capture
from autopar.ir.program import Program
from autopar.pipeline import CompileOptions, compile_program, fastest_mesh
from autopar.planning.mesh_shape import fastest_shape, mesh_shapes, remark
from tests.completion.networks import mlp

CLUSTER = Cluster.load("h100x8")


def small() -> Program:
    """Returns a training step that communicates however it is split."""
    with torch.device("meta"):
        blocks = [nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))] * 2
        model, x = nn.Sequential(*blocks), torch.zeros(1024, 1024)
    optimizer = torch.optim.AdamW(model.parameters())
    recipe = Recipe(loss=nn.functional.mse_loss, optimizer=optimizer)
    return capture(model, (x, x), recipe).program


@pytest.mark.parametrize("devices", [1, 6, 7, pytest.param(12, marks=pytest.mark.slow)])
def test_no_shape_is_faster(devices: int) -> None:
    program = small()
    complete = Complete(CLUSTER, "auto")
    best = min(complete.plan(apply_mesh(program, mesh)).seconds for mesh in mesh_shapes(devices))
    found = fastest_shape(program, devices, CLUSTER)
    assert found.shapes[0].seconds == pytest.approx(best, rel=1e-9)
    assert found.plan.seconds == found.shapes[0].seconds
    assert found.shapes == fastest_shape(program, devices, CLUSTER).shapes


def test_shapes_have_up_to_three_axes() -> None:
    assert [mesh.shape for mesh in mesh_shapes(12)] == [
        *((12,), (2, 6), (3, 4), (4, 3), (6, 2)),
        *((2, 2, 3), (2, 3, 2), (3, 2, 2)),
    ]
    assert [mesh.shape for mesh in mesh_shapes(7)] == [(7,)]
    assert [mesh.shape for mesh in mesh_shapes(1)] == [(1,)]
    with pytest.raises(InvalidInputError, match="needs at least one"):
        list(mesh_shapes(0))


def test_a_shape_is_dropped_that_its_bound_forbids() -> None:
    shapes = fastest_shape(small(), 12, CLUSTER).shapes
    dropped = [shape for shape in shapes if shape.is_dropped]
    assert dropped
    above = shapes[0].seconds * (1 - CLOSE)
    assert all(shape.bound_seconds > above for shape in dropped)


def test_a_shape_is_searched_once_and_only_if_its_bound_allows() -> None:
    told: list[str] = []
    watch = Watch(tell=lambda progress: told.append(progress.doing))
    options = CompileOptions.from_arguments(devices=8, cluster="h100x4")
    compiled = compile_program(mlp(batch=1024), options, watch=watch)
    shapes = next(each.detail for each in compiled.report if each.subject == "mesh shape")
    dropped = shapes.partition("dropped, by their bounds: ")[2].count(" at least ")
    assert dropped
    # All links within a host are alike, so that 4x2 differs from 2x4 in the order of axes only.
    assert "4x2 as 2x4" in shapes
    begun = [text for text in told if text.endswith(": begun")]
    assert begun[0] == "searching 8 (1 of 4): begun"
    assert all(re.search(r"\(\d of 4\), best so far [\d.]+ us: ", text) for text in begun[1:])
    assert len(begun) == 3
    assert sum(text.endswith(": searching, round 1") for text in told) == 3 - dropped


def test_no_shape_is_begun_when_time_is_up() -> None:
    first, *others = fastest_shape(small(), 6, CLUSTER, Watch(0)).shapes
    assert first.mesh.shape == (6,)
    assert math.isfinite(first.seconds)
    assert [shape.mesh.shape for shape in others] == [(2, 3), (3, 2)]
    assert all(shape.is_late for shape in others)
    assert remark([first, *others]).detail.endswith("; left at the time limit: 2x3, 3x2")


def test_a_shape_is_marked_whose_search_was_cut_off() -> None:
    watch = Watch(2, clock=count().__next__)
    first, *others = fastest_shape(small(), 4, CLUSTER, watch).shapes
    assert first.is_cut
    assert str(first).endswith(" (stopped early)")
    assert not any(shape.is_cut for shape in others)
    assert not any(shape.is_cut for shape in fastest_shape(small(), 4, CLUSTER).shapes)


def test_a_plan_in_which_all_do_the_same_says_what_helps() -> None:
    model, x = nn.Linear(4, 4), torch.zeros(4, 4)
    recipe = Recipe(loss=nn.functional.mse_loss, optimizer=torch.optim.SGD(model.parameters()))
    program = apply_mesh(capture(model, (x, x), recipe).program, parse_mesh("a=2,b=2"))
    found = Complete(Cluster.load("cpu"), "auto").plan(program).forecast
    assert found is not None
    assert found.plan == "a: replicate, b: replicate"
    assert found.notes[0] == "this is preset replicate:a,replicate:b"
    assert "give a larger batch, or a strategy by name" in found.notes[1]


def test_the_report_names_the_shapes() -> None:
    program = mlp(batch=1024)
    options = CompileOptions.from_arguments(devices=4, cluster="h100")
    found = fastest_mesh(program, options)
    said = remark(found.shapes)
    assert found.mesh.size == 4
    assert "2x2" in said.detail
    assert said in compile_program(program, options).report


def test_memory_decides_the_shape_too() -> None:
    program = mlp(batch=64)
    within = CompileOptions.from_arguments(devices=4, cluster="h100", memory="24MiB")
    mesh = fastest_mesh(program, within).mesh
    chosen = replace(within, mesh=mesh, strategy="auto", any_shape=False)
    assert memory_timeline(compile_program(program, chosen).partitioned).peak_bytes <= 24 << 20
    with pytest.raises(InvalidInputError, match="raise the limit"):
        fastest_mesh(program, CompileOptions.from_arguments(devices=2, memory=1000))


def test_modules_are_compiled_for_devices() -> None:
    model = torch.nn.Linear(64, 64)
    compiled = autopar.compile(model, (torch.zeros(8, 64),), devices=6)
    assert compiled.options.mesh.size == 6
    assert any(entry.subject == "mesh shape" for entry in compiled.report)


def test_devices_leave_axes_unnamed() -> None:
    with pytest.raises(InvalidInputError, match="strategy 'data:0' is for a certain mesh, so"):
        CompileOptions.from_arguments(devices=4, strategy="data:0")
    with pytest.raises(InvalidInputError, match=r"shard\['w'\]: a pin names axes of a certain"):
        CompileOptions.from_arguments(devices=4, shard={"w": ["d0", -1]})
    with pytest.raises(InvalidInputError, match="at least one"):
        CompileOptions.from_arguments(devices=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strategy: replicate:0\n", "plan.yaml: strategy 'replicate:0' is for a certain mesh, so"),
        ("strategy: none\n", "plan.yaml: strategy 'none' is for a certain mesh, so"),
        ("shard:\n  weight: [d0, -1]\n", "plan.yaml:2: a pin names axes of a certain mesh, so"),
        ("ops:\n  - of: [y]\n    split: {i0: d0}\n", "a pin names axes of a certain mesh, so"),
    ],
)
def test_a_file_leaves_axes_unnamed_too(tmp_path: Path, text: str, message: str) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        CompileOptions.from_arguments(devices=2, plan=plan)
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        CompileOptions.from_text(devices=2, plan=plan)


def test_choices_of_a_file_are_kept(tmp_path: Path) -> None:
    """They name no axes; the program whose shape is searched has them too."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("strategy: auto\nmemory: 1GiB\nactivations:\n  '*.nothing': save\n")
    options = CompileOptions.from_arguments(devices=2, plan=plan)
    assert options.memory_bytes == 1 << 30
    with pytest.raises(AnnotationError, match="matches no module or activation"):
        fastest_mesh(small(), options)
