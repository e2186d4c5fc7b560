"""Rules of products, attention, losses, images and elementwise ops with a size that is open.

As in `test_open_sizes_shape`, every sample is taken once per factor of its rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from autopar.ir.expr.expression import Size, add, floordiv, multiply
from autopar.ir.ops.elementwise import cast, gated, optimizer, pointwise, quantized
from autopar.ir.ops.image import convolution, interpolation, pooling, resizing, sampling
from autopar.ir.ops.losses import alignment, loss, nll
from autopar.ir.ops.products import (
    attention,
    attention_backward,
    distance,
    experts,
    linalg,
    matmul,
    packed_matmul,
    recurrent,
)
from autopar.ir.program import Arg
from tests.ops.open_sizes import Loss, Shapes, check_losses, described
from tests.ops.samples import samples_by_kind

TABLES = (
    *(attention, attention_backward, distance, experts, linalg, matmul, packed_matmul, recurrent),
    *(alignment, loss, nll, convolution, interpolation, pooling, resizing, sampling),
    *(cast, gated, optimizer, pointwise, quantized),
)
KINDS = sorted(kind for table in TABLES for kind in table.RULES if kind in samples_by_kind())

CONVOLUTIONS = (
    *(f"conv{n}d.{overload}" for n in (1, 2, 3) for overload in ("default", "padding")),
    *("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input"),
    *("convolution.default", "convolution_backward.default"),
)
INTERPOLATIONS = (
    *("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default"),
    *("upsample_bicubic2d.default", "upsample_bicubic2d.vec", "autopar.resize"),
)

NAMES = ("upsample_nearest", "_upsample_nearest_exact")

NEAREST = (
    *(f"{kind}{n}d.vec" for kind in NAMES for n in (1, 2, 3)),
    *(f"{kind}{n}d_backward.default" for kind in NAMES for n in (1, 2, 3)),
    *(f"{kind}{n}d.default" for kind in NAMES for n in (2, 3)),
)

LOSSES: Sequence[Loss] = (
    Loss(
        "rule",
        "the factor is a kernel, or an argument that says how many groups or how long runs are",
        (
            *CONVOLUTIONS,
            *("channel_shuffle.default", "native_channel_shuffle.default", "col2im.default"),
            *("glu.default", "glu_backward.default"),
            "quantized_decomposed.quantize_per_channel_group.default",
            "quantized_decomposed.dequantize_per_channel_group.default",
        ),
    ),
    Loss(
        "split",
        "how large the windows are depends on the size, and may differ from one to the next",
        tuple(f"adaptive_avg_pool{n}d.default" for n in (1, 2, 3)),
    ),
    Loss(
        "split",
        "which size the whole has is an argument, by which an open one may be a part",
        ("autopar.max_pool_backward",),
    ),
    Loss(
        "factor",
        "an open size may not be a multiple of the number of pixels that come together",
        (
            *("conv_transpose1d.default", "conv_transpose2d.input"),
            *("convolution_backward.default", "avg_pool2d_backward.default"),
            *("max_pool2d_with_indices_backward.default", "autopar.max_pool_backward"),
            *(*INTERPOLATIONS, *NEAREST),
        ),
    ),
    Loss(
        "factor",
        "a size that is whole is a part of its factor's name, or a multiple of 16 has its own",
        (
            *(kind.removeprefix("aten.") for kind in linalg.RULES if kind != "aten.trace.default"),
            *("autopar.recurrent", "autopar.recurrent_backward"),
            *("mkldnn_rnn_layer.default", "mkldnn_rnn_layer_backward.default"),
            *("_grouped_mm.default", "_scaled_mm.default"),
        ),
    ),
    Loss(
        "body",
        "the body divides by a size, or by how far windows reach from it",
        (
            *("scaled_dot_product_attention.default", "_scaled_dot_product_attention_math.default"),
            *("_scaled_dot_product_flash_attention_for_cpu.default", "autopar.attention"),
            *("cross_entropy_loss.default", "convolution_backward.default"),
            *(f"adaptive_max_pool{n}d.default" for n in (1, 2, 3)),
        ),
    ),
)


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_number_put_in_it_is_the_rule_of_the_number(kind: str) -> None:
    check_losses(kind, LOSSES)


BATCH, LENGTH, PAST = Size("batch"), Size("length"), Size("past")
KEYS = add(PAST, LENGTH)
TOKENS = multiply(BATCH, LENGTH)
X = (BATCH, LENGTH, 64)
QUERY, KEY = (BATCH, 8, LENGTH, 16), (BATCH, 2, KEYS, 16)
SCORES = (BATCH, 8, LENGTH, KEYS)
IMAGES = (BATCH, 3, 32, 32)
OPEN_IMAGES = (BATCH, 3, LENGTH, PAST)


def convolved(padding: tuple[int, ...]) -> dict[str, Arg]:
    """Returns the arguments of a convolution."""
    return {
        "stride": (1, 1),
        "padding": padding,
        "dilation": (1, 1),
        "transposed": False,
        "output_padding": (0, 0),
        "groups": 1,
    }


NEEDED: Sequence[tuple[str, str, str, Shapes, Shapes, Mapping[str, Arg]]] = (
    (
        "aten.mm.default",
        "self mat2",
        "m k, k n -> m n; m k n",
        [(TOKENS, 64), (64, 128)],
        [(TOKENS, 128)],
        {},
    ),
    (
        "aten.bmm.default",
        "self mat2",
        "b m k, b k n -> b m n; b m k n",
        [(multiply(BATCH, 8), LENGTH, 16), (multiply(BATCH, 8), 16, KEYS)],
        [(multiply(BATCH, 8), LENGTH, KEYS)],
        {},
    ),
    (
        "aten.addmm.default",
        "self mat1 mat2",
        "n, m k, k n -> m n; n m; product: n m k",
        [(128,), (TOKENS, 64), (64, 128)],
        [(TOKENS, 128)],
        {},
    ),
    (
        "aten.linear.default",
        "input weight bias",
        "b0 b1 k, n k, n -> b0 b1 n; b0 b1 n; product: b0 b1 k n",
        [X, (128, 64), (128,)],
        [(BATCH, LENGTH, 128)],
        {},
    ),
    (
        "aten.matmul.default",
        "self other",
        "b0 b1 m k, b0 1 k n -> b0 b1 m n; b0 b1 m k n",
        [QUERY, (BATCH, 1, 16, KEYS)],
        [SCORES],
        {},
    ),
    (
        "aten.scaled_dot_product_attention.default",
        "query key value",
        "b0 (h r) l e, b0 h s e, b0 h s d -> b0 (h r) l d; b0 h r l; products: b0 h r l e s d",
        [QUERY, KEY, KEY],
        [QUERY],
        {"enable_gqa": True},
    ),
    (
        "aten.scaled_dot_product_attention.default",
        "query key value attn_mask",
        "b0 b1 l e, b0 b1 s e, b0 b1 s d, b0 1 l s -> b0 b1 l d; b0 b1 l; products: b0 b1 l e s d",
        [QUERY, (BATCH, 8, KEYS, 16), (BATCH, 8, KEYS, 16), (BATCH, 1, LENGTH, KEYS)],
        [QUERY],
        {},
    ),
    (
        "aten.scaled_dot_product_attention.default",
        "query key value",
        "b0 b1 l e, b0 b1 s e, b0 b1 s d -> b0 b1 l d; b0 b1; masked: b0 b1 l;"
        " products: b0 b1 l e s d",
        [QUERY, QUERY, QUERY],
        [QUERY],
        {"is_causal": True},
    ),
    (
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "query key value",
        "b0 (h r) l e, b0 h s e, b0 h s d -> b0 (h r) l d, b0 (h r) l; b0 h r l;"
        " products: b0 h r l e s d",
        [QUERY, KEY, KEY],
        [QUERY, QUERY[:3]],
        {},
    ),
    (
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        "grad_out query key value out logsumexp",
        "b0 (h r) l e, b0 (h r) l e, b0 h s e, b0 h s e, b0 (h r) l e, b0 (h r) l"
        " -> b0 (h r) l e, b0 h s e, b0 h s e; b0 h r l s",
        [QUERY, QUERY, KEY, KEY, QUERY, QUERY[:3]],
        [QUERY, KEY, KEY],
        {"is_causal": False},
    ),
    (
        "aten.add.Tensor",
        "self other",
        "i0 i1 i2 i3, i0 1 i2 i3 -> i0 i1 i2 i3; i0 i1 i2 i3",
        [SCORES, (BATCH, 1, LENGTH, KEYS)],
        [SCORES],
        {},
    ),
    (
        "aten.mul.Tensor",
        "self other",
        "i0 i1 i2, i1 1 -> i0 i1 i2; i0 i1 i2",
        [X, (LENGTH, 1)],
        [X],
        {},
    ),
    (
        "aten.where.self",
        "condition self other",
        "i2 i3, i0 i1 i2 i3,  -> i0 i1 i2 i3; i2 i3 i0 i1",
        [(LENGTH, KEYS), SCORES, ()],
        [SCORES],
        {},
    ),
    ("aten.mul.Scalar", "self", "i0 i1 i2 -> i0 i1 i2; i0 i1 i2", [X], [X], {"other": LENGTH}),
    ("aten._to_copy.default", "self", "i0 i1 i2 -> i0 i1 i2; i0 i1 i2", [X], [X], {}),
    ("aten.glu.default", "self", "i0 i1 (g c) -> i0 i1 c; i0 i1 c", [X], [(BATCH, LENGTH, 32)], {}),
    (
        "aten.cross_entropy_loss.default",
        "self target",
        "b0 c, b0 ->; ; picked: b0 c",
        [(TOKENS, 100), (TOKENS,)],
        [()],
        {},
    ),
    (
        "aten.nll_loss_forward.default",
        "self target",
        "b0 c, b0 -> ,; ; picked: b0 c",
        [(TOKENS, 100), (TOKENS,)],
        [(), ()],
        {},
    ),
    (
        "aten.mse_loss.default",
        "self target",
        "i0 i1 i2, i0 i1 i2 ->; ; sum: i0 i1 i2",
        [X, X],
        [()],
        {},
    ),
    (
        "aten.mse_loss_backward.default",
        "grad_output self target",
        ", i0 i1 i2, i0 i1 i2 -> i0 i1 i2; ; sum: i0 i1 i2",
        [(), X, X],
        [X],
        {},
    ),
    (
        "aten.convolution.default",
        "input weight bias",
        "n i x0 x1, o i k0 k1, o -> n o y0 y1; n o y0 y1; product: n i o y0 y1",
        [IMAGES, (8, 3, 3, 3), (8,)],
        [(BATCH, 8, 32, 32)],
        convolved((1, 1)),
    ),
    (
        "aten.convolution.default",
        "input weight",
        "n i x0 x1, o i k0 k1 -> n o y0 y1; n i o y0 y1",
        [OPEN_IMAGES, (8, 3, 3, 3)],
        [(BATCH, 8, LENGTH, PAST)],
        convolved((1, 1)),
    ),
    (
        "aten.convolution.default",
        "input weight",
        "n i y0 y1, o i 1 1 -> n o y0 y1; n i y0 y1 o",
        [OPEN_IMAGES, (8, 3, 1, 1)],
        [(BATCH, 8, LENGTH, PAST)],
        convolved((0, 0)),
    ),
    (
        "aten.convolution_backward.default",
        "grad_output input weight",
        "n o x0 x1, n i y0 y1, o i k0 k1 -> n i y0 y1, o i k0 k1, o; n o; parts: n o i y0 y1",
        [(BATCH, 8, LENGTH, PAST), OPEN_IMAGES, (8, 3, 3, 3)],
        [OPEN_IMAGES, (8, 3, 3, 3), (8,)],
        {"bias_sizes": (8,), "output_mask": (True, True, True), **convolved((1, 1))},
    ),
    (
        "aten.max_pool2d_with_indices.default",
        "self",
        "i0 i1 x0 x1 -> i0 i1 y0 y1, i0 i1 y0 y1; i0 i1; placed: i0 i1 y0 y1",
        [OPEN_IMAGES],
        [(BATCH, 3, floordiv(LENGTH, 2), floordiv(PAST, 2))] * 2,
        {"kernel_size": (2, 2), "stride": (2, 2)},
    ),
    (
        "aten.max_pool2d_with_indices.default",
        "self",
        "i0 i1 x0 x1 -> i0 i1 y0 y1, i0 i1 y0 y1; i0 i1; placed: i0 i1 y0 y1",
        [IMAGES],
        [(BATCH, 3, 16, 16)] * 2,
        {"kernel_size": (2, 2), "stride": (2, 2)},
    ),
    (
        "aten.upsample_nearest2d.default",
        "self",
        "i0 i1 y0 y1 -> i0 i1 (y0 b0) (y1 b1); i0 i1 y0 y1",
        [OPEN_IMAGES],
        [(BATCH, 3, LENGTH * 2, PAST * 2)],
        {"output_size": (LENGTH * 2, PAST * 2)},
    ),
    (
        "aten.upsample_bilinear2d.default",
        "self",
        "i0 i1 x0 x1 -> i0 i1 (y0 b0) (y1 b1); i0 i1; halo: i0 i1 y0 y1",
        [IMAGES],
        [(BATCH, 3, 64, 64)],
        {"output_size": (64, 64), "align_corners": False},
    ),
    (
        "aten.upsample_bilinear2d.default",
        "self",
        "i0 i1 x0 x1 -> i0 i1 (y0 b0) (y1 b1); i0 i1; halo: i0 i1 y0 y1",
        [OPEN_IMAGES],
        [(BATCH, 3, LENGTH * 2, PAST * 2)],
        {"output_size": (LENGTH * 2, PAST * 2), "align_corners": False},
    ),
    (
        "aten._adaptive_avg_pool2d.default",
        "self",
        "i0 i1 i2 i3 -> i0 i1 1 1; i0 i1; sum: i0 i1 i2 i3",
        [OPEN_IMAGES],
        [(BATCH, 3, 1, 1)],
        {"output_size": (1, 1)},
    ),
)
"""What an op is called with, its tensors by name, and the text of its rule; what may be split, by
its body too."""


@pytest.mark.parametrize(("kind", "names", "expected", "operands", "results", "args"), NEEDED)
def test_what_models_need_is_split(
    kind: str,
    names: str,
    expected: str,
    operands: Shapes,
    results: Shapes,
    args: Mapping[str, Arg],
) -> None:
    assert described(kind, names.split(), operands, results, args) == expected
