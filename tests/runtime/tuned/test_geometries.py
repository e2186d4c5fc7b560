"""Convolutions of random geometries, with numbers before and behind them, are what was said."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from autopar.runtime.tuned import kernels
from tests.runtime.tuned.test_tuned import assert_as_the_program_says, opened

ROWS = """
program "rows" executable
func main {
  input %ids: i64[3, 5]
  input %wide: T[6, 13]
  parameter %table: i8[13, 7]
  parameter %scale: T[13, 1]
  parameter %matrix: i8[7, 9]
  parameter %columns: T[1, 9]
  parameter %plain: T[9, 13]
  %f: T[13, 7] = aten._to_copy.default(self=%table, dtype=T)
  %m: T[13, 7] = aten.mul.Tensor(self=%f, other=%scale)
  %e: T[3, 5, 7] = aten.embedding.default(weight=%m, indices=%ids)
  %v: T[15, 7] = aten.view.default(self=%e, size=[15, 7])
  %g: T[7, 9] = aten._to_copy.default(self=%matrix, dtype=T)
  %r: T[7, 9] = aten.mul.Tensor(self=%g, other=%columns)
  %p: T[15, 9] = aten.mm.default(self=%v, mat2=%r)
  %t: T[13, 9] = aten.permute.default(self=%plain, dims=[1, 0])
  %q: T[6, 9] = aten.mm.default(self=%wide, mat2=%t)
  return %p as "p", %q as "q"
}
"""


def program(seed: int) -> str:
    """Returns a convolution between numbers that images are multiplied by and that are added."""
    drawn = random.Random(seed)
    rank, groups = drawn.choice((1, 2, 2, 2)), drawn.choice((1, 1, 1, 2, 4))
    transposed = drawn.random() < 0.3
    channels, more = 4, drawn.choice((1, 2))
    kernel = [drawn.choice((1, 1, 2, 3)) for _ in range(rank)]
    if drawn.random() < 0.4:
        kernel = [drawn.choice((1, 2))] * rank
    stride = kernel if transposed and drawn.random() < 0.7 else [drawn.choice((1, 2))] * rank
    padding = [drawn.choice((0, 0, 1)) if size > 1 else 0 for size in kernel]
    dilation = [drawn.choice((1, 1, 2))] * rank
    image = (3, channels, *(drawn.choice((6, 7)) for _ in range(rank)))
    if rank == 2 and drawn.random() < 0.2:
        image, kernel[1], padding[1] = (*image[:3], 1), 1, 0
    weight = (channels, more * channels // groups) if transposed else (more * channels, 4 // groups)
    weight = (*weight, *kernel)
    zeros = [0] * rank
    sizes = torch.convolution(
        torch.empty(image), torch.empty(weight), None, stride, padding, dilation, transposed,
        zeros, groups,
    ).shape  # fmt: skip
    of, to = f"T{list(image)}", f"T{list(sizes)}"
    bias = "%bias" if drawn.random() < 0.5 else "none"
    number = drawn.choice((0.0, -1.5, 3))
    return f"""
program "geometry" executable
func main {{
  input %x: {of}
  parameter %w: T{list(weight)}
  parameter %bias: T[{sizes[1]}]
  parameter %scale: T[{sizes[1]}, {", ".join(["1"] * rank)}]
  %h: {of} = aten.relu.default(self=%x)
  %a: {of} = aten.mul.Tensor(self=%h, other={number})
  %b: {of} = aten.add.Tensor(self=%a, other=0.25)
  %c: {to} = aten.convolution.default(input=%b, weight=%w, bias={bias}, stride={stride},
    padding={padding}, dilation={dilation}, transposed={str(transposed).lower()},
    output_padding={zeros}, groups={groups})
  %d: {to} = aten.mul.Tensor(self=%c, other=0.5)
  %e: {to} = aten.add.Tensor(self=%d, other=2)
  %f: {to} = aten.mul.Tensor(self=%e, other=%scale)
  %g: {to} = aten.clamp.default(self=%f, min=-1.0, max=50.0)
  return %g as "g"
}}
"""


@pytest.fixture(params=[0, kernels.LARGE], ids=["packed", "plain"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets all products be large, or none."""
    for name in ("LARGE", "LARGE_IF_NARROW"):
        monkeypatch.setattr(kernels, name, request.param)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("seed", range(12))
def test_a_convolution_is_what_it_was(seed: int, tmp_path: Path) -> None:
    assert_as_the_program_says(*opened(program(seed), "f32", tmp_path), 1e-5)


@pytest.mark.usefixtures("large")
def test_rows_are_scaled_behind_a_lookup_and_products_packed(tmp_path: Path) -> None:
    mesh, inputs = opened(ROWS, "f32", tmp_path)
    assert_as_the_program_says(mesh, inputs, 1e-5)
    for tensor in mesh.ranks[0].weights.values():
        tensor.mul_(2)
    assert_as_the_program_says(mesh, inputs, 1e-5)


def test_numbers_around_a_convolution_go_into_its_weights(tmp_path: Path) -> None:
    for text in map(program, range(12)):
        tuned = opened(text, "f32", tmp_path)[0].ranks[0].tuned()
        assert tuned is not None
        of_groups = "transposed=true" in text and "groups=1)" not in text
        assert of_groups or "mul_" not in tuned.module.code


@pytest.mark.parametrize("batch", [0, 2])
def test_products_convolve_batches_of_any_size(batch: int) -> None:
    image, bias = torch.rand(batch, 3, 4, 5), torch.rand(6)
    point, block = torch.rand(6, 3, 1, 1), torch.rand(3, 6, 2, 3)
    points = kernels.convolve_points(image, kernels.of_points(point), bias, [2, 1], None)
    torch.testing.assert_close(points, torch.conv2d(image, point, bias, (2, 1)))
    blocks = kernels.convolve_apart(image, kernels.of_blocks(block), bias, [2, 3], None)
    torch.testing.assert_close(blocks, torch.conv_transpose2d(image, block, bias, (2, 3)))
