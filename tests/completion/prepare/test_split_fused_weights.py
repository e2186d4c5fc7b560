"""Fused weights of unequal parts, taken apart: what is computed stays, and what stays whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autopar.completion.prepare.sections import find_sections
from autopar.completion.prepare.split_fused_weights import split_variants
from autopar.ir.program import Part, Program
from autopar.ir.text import parse_program
from autopar.ir.verify import verify_structure
from autopar.pipeline import CompileOptions, compile_program, write
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.ports.ports import read_weights
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.fuzz.programs import random_case
from tests.fuzz.test_fuzz import equal
from tests.runtime.execute.targets import run_program
from tests.runtime.job.real import run_ranks

FUSED = """
    mesh tp=2
    input %x: f32[6, 8]
    parameter %w: f32[16, 8] as "fused.weight"
    parameter %b: f32[16]
    %t: f32[8, 16] = aten.t.default(self=%w)
    %y: f32[6, 16] = aten.addmm.default(self=%b, mat1=%x, mat2=%t)
    %q: f32[6, 8], %k: f32[6, 4], %v: f32[6, 4] =
      aten.split_with_sizes.default(self=%y, split_sizes=[8, 4, 4], dim=1)
"""
"""A product with a fused weight, before anything is done with its parts."""


def weights_of(program: Program) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        port.name: torch.randn(port.shape, generator=generator)
        for port in program.signature.inputs
        if port.role == "parameter"
    }


def inputs_of(program: Program) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ports = program.signature.inputs
    return {p.label: torch.randn(p.shape, generator=generator) for p in ports if p.role == "input"}


def run_apart(
    apart: Program, weights: Mapping[str, Tensor], inputs: Mapping[str, Tensor], folder: Path
) -> Mapping[str, Tensor]:
    """Runs a rewritten program on one device, its weights read from a file of whole ones."""
    verify_structure(apart)
    write_weights(folder / "weights", weights)
    with WeightFile(folder / "weights") as file:
        return run_serial(apart, read_weights(specialize(apart, {}), file, "cpu"), inputs)


def parts(program: Program) -> dict[str, Part]:
    ports = (*program.signature.inputs, *program.signature.outputs)
    return {port.name: port.part for port in ports if port.part is not None}


def test_a_product_becomes_one_per_part() -> None:
    (apart,) = split_variants(parse_program(FUSED + "return %q, %k, %v"))
    assert [(op.kind, op.results) for op in apart.main.ops] == [
        ("aten.t.default", ("t[0:8]",)),
        ("aten.t.default", ("t[8:12]",)),
        ("aten.t.default", ("t[12:16]",)),
        ("aten.addmm.default", ("q",)),
        ("aten.addmm.default", ("k",)),
        ("aten.addmm.default", ("v",)),
    ]
    assert apart.main.inputs == (
        "x",
        "w[0:8]",
        "w[8:12]",
        "w[12:16]",
        "b[0:8]",
        "b[8:12]",
        "b[12:16]",
    )
    port = apart.signature.inputs[2]
    assert (port.label, port.shape) == ("fused.weight", (4, 8))
    assert port.part == Part("w", (16, 8), (8, 0))


@pytest.mark.parametrize(
    "rest",
    [
        "return %q, %k, %v",
        # Parts that are computed with in one piece before they are cut, and an addend of theirs.
        """
        parameter %c: f32[8, 16]
        %m: f32[6, 16] = aten.mm.default(self=%x, mat2=%c)
        %s: f32[6, 16] = aten.add.Tensor(self=%y, other=%m, alpha=2)
        %g: f32[6, 16] = aten.gelu.default(self=%s)
        %h: f32[6, 10] = aten.slice.Tensor(self=%g, dim=1, start=0, end=10)
        %i: f32[6, 6] = aten.slice.Tensor(self=%g, dim=1, start=10, end=9223372036854775807)
        return %h, %i
        """,
        # The rest is cut again, and two slices overlap.
        """
        %kv: f32[6, 8] = aten.slice.Tensor(self=%y, dim=1, start=8, end=16)
        %qk: f32[6, 12] = aten.slice.Tensor(self=%y, dim=1, start=0, end=-4)
        return %kv, %qk, %q, %v
        """,
        # A view that makes heads of the columns, and others of them.
        """
        %r: f32[6, 4, 4] = aten.view.default(self=%y, size=[6, 4, 4])
        %r1: f32[6, 1, 4], %r3: f32[6, 3, 4] =
          aten.split_with_sizes.default(self=%r, split_sizes=[1, 3], dim=1)
        return %r1, %r3
        """,
        # A sum over the parts, as the gradient of x is one.
        """
        parameter %d: f32[16, 5]
        %o: f32[6, 5] = aten.mm.default(self=%y, mat2=%d)
        return %o, %q, %k, %v
        """,
        # The gradient of the weight, put together from those of the parts and returned.
        """
        %dy: f32[6, 16] = aten.cat.default(tensors=[%q, %k, %v], dim=1)
        %dyt: f32[16, 6] = aten.t.default(self=%dy)
        %dw: f32[16, 8] = aten.mm.default(self=%dyt, mat2=%x)
        %step: f32[16, 8] = aten.mul.Tensor(self=%dw, other=-0.1)
        %new: f32[16, 8] = aten.add.Tensor(self=%w, other=%step)
        return %new, %dw as "gradient"
        """,
    ],
)
def test_the_parts_compute_what_the_whole_does(rest: str, tmp_path: Path) -> None:
    program = parse_program(FUSED + rest)
    weights, inputs = weights_of(program), inputs_of(program)
    expected = run_serial(program, weights, inputs)
    sections = find_sections(program.main)
    ways = list(split_variants(program))
    assert bool(ways) == bool(sections)
    for apart in ways:
        found = run_apart(apart, weights, inputs, tmp_path)
        assert found.keys() == expected.keys()
        for label, tensor in expected.items():
            torch.testing.assert_close(found[label], tensor, msg=f"{label} of {rest}")
    for tp in (2, 3):
        done = compile_program(
            replace(program, mesh=None), CompileOptions.from_text(mesh=f"tp={tp}")
        )
        with WeightFile(tmp_path / "weights") if ways else stored(weights, tmp_path) as file:
            ranks = VirtualMesh(done.deployment, file).run(inputs)
        for label, tensor in expected.items():
            torch.testing.assert_close(ranks[label], tensor)


def stored(weights: Mapping[str, Tensor], folder: Path) -> WeightFile:
    write_weights(folder / "weights", weights)
    return WeightFile(folder / "weights")


@pytest.mark.parametrize(
    "rest",
    [
        # Read by something else that needs the columns together.
        "%s: f32[6, 16] = aten._softmax.default(self=%y, dim=1, half_to_float=false)"
        " return %q, %k, %v, %s",
        "%c: f32[16, 8] = aten.cumsum.default(self=%w, dim=0) return %q, %k, %v, %c",
        # Cut elsewhere too, so that only some of the pieces are parts.
        "%c: f32[16] = aten.flip.default(self=%b, dims=[0]) return %q, %k, %v, %c",
    ],
)
def test_what_is_also_needed_whole_is_left_alone(rest: str) -> None:
    assert not list(split_variants(parse_program(FUSED + rest)))


def test_outputs_of_open_sizes_are_left_alone() -> None:
    rest = "return %y, %q, %k, %v"
    assert list(split_variants(parse_program(FUSED + rest)))
    text = FUSED.replace("[6, ", "[$n, ").replace("mesh tp=2", "mesh tp=2 size $n = 0..9 planned 6")
    assert not list(split_variants(parse_program(text + rest)))
    assert list(split_variants(parse_program(text + "return %q, %k, %v")))


def test_state_that_is_updated_in_place_is_left_alone() -> None:
    rest = "%new: f32[16] = aten.neg.default(self=%b) alias %new -> %b return %q, %k, %v, %new"
    assert not list(split_variants(parse_program(FUSED + rest)))


def test_equal_parts_are_left_to_sub_dimensions() -> None:
    text = FUSED.replace("[8, 4, 4]", "[8, 8]").replace(
        "%k: f32[6, 4], %v: f32[6, 4]", "%k: f32[6, 8]"
    )
    assert not list(split_variants(parse_program(text + "return %q, %k")))


def test_activations_alone_are_left_alone() -> None:
    text = FUSED.replace("parameter", "input")
    assert not list(split_variants(parse_program(text + "return %q, %k, %v")))


def test_pins_are_those_of_the_parts_and_then_of_the_large_ones() -> None:
    pinned = FUSED.replace("f32[16, 8] as", 'f32[16@tp, 8] ~annotated("w=[tp,-1]") as')
    first, second = split_variants(parse_program(pinned + "return %q, %k, %v"))
    layouts = [first.main.values[name].dist for name in ("w[0:8]", "w[8:12]", "w[12:16]")]
    assert [str(layout) for layout in layouts] == ["[8@tp, 8]", "[4@tp, 8]", "[4@tp, 8]"]
    assert "part of %w" in str(first.main.values["w[8:12]"].origin)
    kept = [second.main.values[name].dist for name in ("w[0:8]", "w[8:12]", "w[12:16]")]
    assert kept == [layouts[0], None, None]


@pytest.mark.parametrize("seed", [275, 586, 951, 964, 1316, 1320, 1336, 1347])
def test_random_programs_that_cut_weights(seed: int, tmp_path: Path) -> None:
    case = random_case(seed)
    program = replace(case.program, mesh=case.options.mesh)
    expected = run_serial(program, case.weights, case.inputs)
    ways = list(split_variants(program))
    assert ways
    for apart in ways:
        found = run_apart(apart, case.weights, case.inputs, tmp_path)
        assert all(equal(found[label], tensor) for label, tensor in expected.items())


def test_real_processes_read_and_return_parts(tmp_path: Path) -> None:
    text = FUSED.replace("[8, 4, 4]", "[7, 5, 4]").replace("6, 8], %k", "6, 7], %k")
    program = parse_program(
        text.replace("%k: f32[6, 4]", "%k: f32[6, 5]")
        + """
        %dy: f32[6, 16] = aten.cat.default(tensors=[%q, %k, %v], dim=1)
        %dyt: f32[16, 6] = aten.t.default(self=%dy)
        %dw: f32[16, 8] = aten.mm.default(self=%dyt, mat2=%x)
        %new: f32[16, 8] = aten.sub.Tensor(self=%w, other=%dw)
        return %new
        """
    )
    weights, inputs = weights_of(program), inputs_of(program)
    pins = ["fused.weight=[tp,-1]", "b=[tp]"]
    options = CompileOptions.from_text(mesh="tp=3", strategy="none", shards=pins)
    done = compile_program(replace(program, mesh=None), options)
    assert {part.of for part in parts(done.serial).values()} == {"w", "b", "new"}
    assert not any(op.kind.startswith("comm.") for op in done.partitioned.main.ops)
    write(done, weights, tmp_path / "build")
    outputs, _ = run_ranks(3, run_program, [tmp_path / "build"], inputs)[0]
    expected = run_serial(program, weights, inputs)["new"]
    torch.testing.assert_close(torch.as_tensor(outputs["new"]), expected)
