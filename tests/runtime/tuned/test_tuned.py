"""What CPUs compute at inference is what the program says but for rounding, whatever its sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.tuned import graph
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.runtime.programs import deploy

PADS = "transposed=false, output_padding=[0, 0]"
IMAGES = f"""
program "images" executable
func main {{
  input %x: T[3, 5, 7, 9]
  parameter %w: T[6, 5, 3, 3]
  parameter %gamma: T[6]
  parameter %beta: T[6]
  parameter %mean: T[6]
  parameter %var: T[6]
  parameter %scale: T[]
  parameter %shift: T[6, 1, 1]
  parameter %own: T[6, 1, 3, 3]
  %c: T[3, 6, 4, 5] = aten.convolution.default(input=%x, weight=%w, bias=none, stride=[2, 2],
    padding=[1, 1], dilation=[1, 1], {PADS}, groups=1)
  %n: T[3, 6, 4, 5], %a: T[0], %b: T[0] = aten._native_batch_norm_legit_no_training.default(
    input=%c, weight=%gamma, bias=%beta, running_mean=%mean, running_var=%var, momentum=0.1,
    eps=1e-05)
  %s: T[3, 6, 4, 5] = aten.mul.Tensor(self=%scale, other=%n)
  %t: T[3, 6, 4, 5] = aten.add.Tensor(self=%s, other=%shift)
  %r: T[3, 6, 4, 5] = aten.relu.default(self=%t)
  %d: T[3, 6, 4, 5] = aten.convolution.default(input=%r, weight=%own, bias=none, stride=[1, 1],
    padding=[1, 1], dilation=[1, 1], {PADS}, groups=6)
  %h: T[3, 6, 4, 5] = aten.hardswish.default(self=%d)
  %y: T[3, 6, 4, 5] = aten.add.Tensor(self=%h, other=%r)
  return %y as "y", %r as "r"
}}
"""
TEXTS = """
program "texts" executable
func main {
  input %ids: i64[3, 5]
  input %z: T[3, 7, 11]
  parameter %table: i8[13, 7]
  parameter %constant_0: T[]
  parameter %w: T[7, 9]
  parameter %bias: T[1, 9]
  parameter %k: T[4, 7, 3]
  parameter %b: T[4]
  %f: T[13, 7] = aten._to_copy.default(self=%table, dtype=T)
  %m: T[13, 7] = aten.mul.Tensor(self=%f, other=%constant_0)
  %e: T[3, 5, 7] = aten.embedding.default(weight=%m, indices=%ids)
  %v: T[15, 7] = aten.view.default(self=%e, size=[15, 7])
  %p: T[15, 9] = aten.mm.default(self=%v, mat2=%w)
  %u: T[3, 5, 9] = aten.view.default(self=%p, size=[3, 5, 9])
  %a: T[3, 5, 9] = aten.add.Tensor(self=%bias, other=%u)
  %g: T[3, 5, 9] = aten.gelu.default(self=%a)
  %c: T[3, 4, 6] = aten.convolution.default(input=%z, weight=%k, bias=%b, stride=[2], padding=[1],
    dilation=[1], transposed=false, output_padding=[0], groups=1)
  %q: T[3, 4, 6] = aten.mul.Tensor(self=%c, other=%c)
  return %g as "g", %q as "q", %c as "c"
}
"""
NUMBERS = f"""
program "numbers" executable
func main {{
  input %x: T[3, 6, 7, 9]
  parameter %w: T[6, 1, 3, 3]
  parameter %v: T[4, 6, 1, 1]
  parameter %b: T[6]
  %m: T[3, 6, 7, 9] = aten.mul.Tensor(self=%x, other=3.0)
  %a: T[3, 6, 7, 9] = aten.add.Tensor(self=%m, other=0.5)
  %p: T[3, 6, 7, 9] = aten.mul.Tensor(self=%a, other=2)
  %c: T[3, 6, 7, 9] = aten.convolution.default(input=%p, weight=%w, bias=%b, stride=[1, 1],
    padding=[1, 1], dilation=[1, 1], {PADS}, groups=6)
  %s: T[3, 6, 7, 9] = aten.mul.Tensor(self=%c, other=-0.25)
  %t: T[3, 6, 7, 9] = aten.add.Tensor(self=%s, other=1.5)
  %r: T[3, 6, 7, 9] = aten.relu.default(self=%t)
  %n: T[3, 6, 7, 9] = aten.mul.Tensor(self=%r, other=0.5)
  %o: T[3, 6, 7, 9] = aten.add.Tensor(self=%n, other=3)
  %d: T[3, 4, 7, 9] = aten.convolution.default(input=%o, weight=%v, bias=none, stride=[1, 1],
    padding=[0, 0], dilation=[1, 1], {PADS}, groups=1)
  %u: T[3, 4, 7, 9] = aten.add.Tensor(self=%d, other=0.125)
  %h: T[3, 4, 7, 9] = aten.hardswish.default(self=%u)
  %k: T[3, 4, 7, 9] = aten.mul.Tensor(self=%h, other=0.75)
  %y: T[3, 4, 7, 9] = aten.add.Tensor(self=%k, other=-0.5)
  return %y as "y"
}}
"""
ODD = f"""
program "odd" executable
func main {{
  input %x: T[3, 6, 7, 9]
  input %given: T[6]
  input %ids: i64[3]
  parameter %w: T[6, 1, 3, 3]
  parameter %b: T[12]
  parameter %scale: T[6, 1, 1]
  parameter %double: f64[]
  parameter %table: T[13, 7]
  parameter %image: T[1, 6, 7, 9]
  parameter %matrix: T[7, 4]
  parameter %row: T[1, 4]
  %strided: T[6] = aten.slice.Tensor(self=%b, dim=0, start=0, end=12, step=2)
  %c: T[3, 6, 5, 7] = aten.convolution.default(input=%x, weight=%w, bias=%given, stride=[1, 1],
    padding=[0, 0], dilation=[1, 1], {PADS}, groups=6)
  %s: T[3, 6, 5, 7] = aten.mul.Tensor(self=%c, other=%scale)
  %d: T[3, 6, 5, 7] = aten.convolution.default(input=%x, weight=%w, bias=%strided, stride=[1, 1],
    padding=[0, 0], dilation=[1, 1], {PADS}, groups=6)
  %t: T[3, 6, 5, 7] = aten.mul.Tensor(self=%d, other=%double)
  %k: T[1, 6, 5, 7] = aten.convolution.default(input=%image, weight=%w, bias=none, stride=[1, 1],
    padding=[0, 0], dilation=[1, 1], {PADS}, groups=6)
  %y: T[3, 6, 5, 7] = aten.add.Tensor(self=%t, other=%k)
  %m: T[13, 7] = aten.mul.Tensor(self=%table, other=%table)
  %e: T[3, 7] = aten.embedding.default(weight=%m, indices=%ids)
  %p: T[13, 4] = aten.mm.default(self=%table, mat2=%matrix)
  %q: T[13, 4] = aten.add.Tensor(self=%p, other=%row)
  %f: T[3, 4] = aten.embedding.default(weight=%q, indices=%ids)
  return %s as "s", %y as "y", %e as "e", %f as "f"
}}
"""
"""What can't be rewritten as what looks alike."""
TOLERANCE = {"f32": 1e-5, "bf16": 0.0}
"""Of bfloat16 nothing is tuned but where things are written."""


def opened(text: str, dtype: str, folder: Path) -> tuple[VirtualMesh, dict[str, Tensor]]:
    """Returns one rank of a program, and inputs."""
    deployment = deploy(
        {"dp": 1}, text.replace("T[", f"{dtype}[").replace("dtype=T", f"dtype={dtype}")
    )
    torch.manual_seed(0)
    drawn: dict[str, dict[str, Tensor]] = {"input": {}, "parameter": {}}
    for port in deployment.programs[0].signature.inputs:
        tensor = torch.rand(port.known_shape) + 0.5
        if port.dtype.startswith("i"):
            tensor = torch.randint(0, 13, port.known_shape)
        drawn[port.role][port.name] = tensor.to(TORCH_DTYPES[port.dtype])
    write_weights(folder / "weights.safetensors", drawn["parameter"])
    with WeightFile(folder / "weights.safetensors") as file:
        return VirtualMesh(deployment, file), drawn["input"]


def assert_as_the_program_says(mesh: VirtualMesh, inputs: dict[str, Tensor], most: float) -> None:
    """Compares what runs with what runs where somebody looks at each value."""
    told = mesh.run(inputs, trace=lambda rank, scope, value, tensor: tensor.clone())
    for _ in range(2):
        found = mesh.run(inputs)
        for label, tensor in told.items():
            assert (found[label] - tensor).abs().max() <= most * tensor.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("text", [IMAGES, TEXTS, NUMBERS, ODD])
def test_it_is_what_the_program_says(text: str, dtype: str, tmp_path: Path) -> None:
    mesh, inputs = opened(text, dtype, tmp_path)
    assert_as_the_program_says(mesh, inputs, TOLERANCE[dtype])
    for tensor in mesh.ranks[0].weights.values():
        tensor.mul_(2)
    assert_as_the_program_says(mesh, inputs, TOLERANCE[dtype])


def test_weights_may_be_made_and_written_in_inference_mode(tmp_path: Path) -> None:
    with torch.inference_mode():
        mesh, inputs = opened(IMAGES, "f32", tmp_path)
        assert_as_the_program_says(mesh, inputs, 1e-5)
        for tensor in mesh.ranks[0].weights.values():
            tensor.mul_(2)
        assert_as_the_program_says(mesh, inputs, 1e-5)


@pytest.mark.parametrize("text", [IMAGES, TEXTS])
def test_what_there_is_no_room_for_is_computed_in_each_call(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "MOST_KEPT", 100)
    mesh, inputs = opened(text, "f32", tmp_path)
    assert_as_the_program_says(mesh, inputs, 1e-5)


def test_what_follows_goes_into_weights_and_biases(tmp_path: Path) -> None:
    tuned = opened(IMAGES, "f32", tmp_path)[0].ranks[0].tuned()
    assert tuned is not None
    assert "batch_norm" not in tuned.module.code
    assert "mul" not in tuned.module.code
    assert "hardswish_" in tuned.module.code
    assert "relu_" in tuned.module.code
    tuned = opened(TEXTS, "f32", tmp_path)[0].ranks[0].tuned()
    assert tuned is not None
    assert "multiply" in tuned.module.code
    assert tuned.module.code.index("embedding") < tuned.module.code.index("_to_copy")
    tuned = opened(NUMBERS, "f32", tmp_path)[0].ranks[0].tuned()
    assert tuned is not None
    assert tuned.module.code.count("multiple_plus(") == 1
    assert tuned.module.code.count("multiple_plus_(") == 1
    assert "add" not in tuned.module.code


BRANCHES = """
program "branches" executable
func main {
  input %x: T[3, 4]
  input %flag: bool[]
  parameter %w: T[4, 4]
  parameter %table: T[2, 4]
  %e: T[3, 4] = aten.exp.default(self=%x)
  %m: T[3, 4] = aten.mm.default(self=%e, mat2=%w)
  %r: T[3, 4] = aten.relu.default(self=%m)
  %s: T[3, 4] = aten.sub.Tensor(self=%m, other=%r)
  %n: T[3, 4] = aten.neg.default(self=%x)
  %o: T[3, 4] = aten.mm.default(self=%n, mat2=%w)
  %p: T[3, 4] = aten.add.Tensor(self=%o, other=%e)
  %t: T[3, 4] = aten.tanh.default(self=%o)
  %y: T[3, 4] = aten.where.self(condition=%flag, self=%r, other=%p)
  %z: T[3, 4] = aten.where.self(condition=%flag, self=%s, other=%t)
  %u: T[3, 4] = aten.add.Tensor(self=%e, other=%y)
  return %u as "u", %z as "z"
}
"""


@pytest.mark.parametrize("flag", [True, False])
def test_only_what_a_condition_picks_is_computed(flag: bool, tmp_path: Path) -> None:
    mesh, inputs = opened(BRANCHES, "f32", tmp_path)
    assert_as_the_program_says(mesh, {**inputs, "flag": torch.tensor(flag)}, 1e-5)
    tuned = mesh.ranks[0].tuned()
    assert tuned is not None
    assert tuned.module.code.count("exp") == 1
    assert "mm" not in tuned.module.code
    assert "tanh_" in tuned.module.choice_flag.branches[1].code


CHOICES_OF_CHOICES = """
program "choices" executable
func main {
  input %x: T[3, 4]
  input %flag: bool[]
  input %other: bool[]
  %e: T[3, 4] = aten.exp.default(self=%x)
  %m: T[3, 4] = aten.tanh.default(self=%x)
  %p: T[3, 4] = aten.where.self(condition=%flag, self=%e, other=%m)
  %a: T[3, 4] = aten.sigmoid.default(self=%x)
  %b: T[3, 4] = aten.neg.default(self=%x)
  %q: T[3, 4] = aten.where.self(condition=%other, self=%a, other=%b)
  %t: T[3, 4] = aten.relu.default(self=%q)
  %r: T[3, 4] = aten.where.self(condition=%flag, self=%t, other=%x)
  return %p as "p", %r as "r"
}
"""
"""What one condition picks is computed only where another one says so."""
CONDITIONS_OF_CHOICES = """
program "conditions" executable
func main {
  input %x: T[3, 4]
  input %flag: bool[]
  input %other: bool[]
  %i: bool[] = aten.logical_not.default(self=%other)
  %j: bool[] = aten.logical_not.default(self=%i)
  %k: bool[] = aten.logical_not.default(self=%j)
  %l: bool[] = aten.logical_and.default(self=%i, other=%flag)
  %c: bool[] = aten.where.self(condition=%flag, self=%k, other=%l)
  %f: T[3, 4] = aten.full.default(size=[3, 4], fill_value=2.0, dtype=T)
  %g: T[3, 4] = aten.exp.default(self=%f)
  %m: T[3, 4] = aten.tanh.default(self=%x)
  %r: T[3, 4] = aten.relu.default(self=%m)
  %y: T[3, 4] = aten.where.self(condition=%c, self=%g, other=%r)
  return %y as "y"
}
"""
"""A condition is picked itself, and a branch takes nothing."""


@pytest.mark.parametrize("text", [CHOICES_OF_CHOICES, CONDITIONS_OF_CHOICES])
def test_choices_depend_on_choices(text: str, tmp_path: Path) -> None:
    mesh, inputs = opened(text, "f32", tmp_path)
    for flag in (torch.tensor(False), torch.tensor(True)):
        for other in (torch.tensor(False), torch.tensor(True)):
            given = {**inputs, "flag": flag, "other": other}
            assert_as_the_program_says(mesh, given, 1e-5)
    tuned = mesh.ranks[0].tuned()
    assert tuned is not None
    assert "choice_" in tuned.module.code
