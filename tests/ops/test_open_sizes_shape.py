"""Rules with a size that is open: with the number put in, each is the rule of that number.

Every sample of an op that moves, indexes, reduces, normalizes or creates is taken once per factor
of its rule, with the size of that factor left open, and all that follows from it. What the rule
loses by that is listed: no rule at all, a factor that isn't split any more, or a body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from autopar.ir.expr.expression import Size, add, multiply
from autopar.ir.ops.create import creation, random
from autopar.ir.ops.index import advanced, binning, embedding_bag, indexing, writing
from autopar.ir.ops.normalize import batch_norm, group_norm, normalization
from autopar.ir.ops.reduce import arg_reduction, reduction, softmax, sort, vector_norm
from autopar.ir.ops.shape import diagonal, insertion, layout, view, window
from autopar.ir.program import Arg
from tests.ops.open_sizes import Loss, Shapes, check_losses, described
from tests.ops.samples import samples_by_kind

TABLES = (
    *(creation, random, advanced, binning, embedding_bag, indexing, writing),
    *(batch_norm, group_norm, normalization, arg_reduction, reduction, softmax, sort, vector_norm),
    *(diagonal, insertion, layout, view, window),
)
KINDS = sorted(kind for table in TABLES for kind in table.RULES if kind in samples_by_kind())


SLICES = ("slice.Tensor", "slice_copy.Tensor", "slice_backward.default", "slice_scatter.default")
UNFOLDS = ("unfold.default", "unfold_copy.default")
DIAGONALS = ("diagonal", "diagonal_copy", "diag_embed", "diagonal_backward", "diagonal_scatter")
LOSSES = (
    Loss(
        "rule",
        "the factor is an argument that says how often, how large or how many",
        (
            *("pixel_shuffle.default", "pixel_unshuffle.default", "repeat_interleave.self_int"),
            *("im2col.default", "native_group_norm.default", "native_group_norm_backward.default"),
        ),
    ),
    Loss(
        "factor",
        "an open size may have no divisor in common with a number, and be shorter or longer",
        (
            *("narrow_copy.default", "view.default", *SLICES),
            *("unfold_backward.default", *UNFOLDS),
            *(f"{kind}.default" for kind in DIAGONALS),
        ),
    ),
)


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_number_put_in_it_is_the_rule_of_the_number(kind: str) -> None:
    check_losses(kind, LOSSES)


BATCH, LENGTH, PAST = Size("batch"), Size("length"), Size("past")
KEYS = add(PAST, LENGTH)
X = (BATCH, LENGTH, 64)
SCORES = (BATCH, 4, LENGTH, KEYS)

NEEDED: Sequence[tuple[str, str, Shapes, Shapes, Mapping[str, Arg]]] = (
    (
        "view.default",
        "(v0 v1) v2 -> v0 v1 v2; v0 v1 v2",
        [(multiply(BATCH, LENGTH), 64)],
        [X],
        {"size": X},
    ),
    (
        "view.default",
        "v0 v1 (v2 v3) -> v0 v1 v2 v3; v0 v1 v2 v3",
        [X],
        [(BATCH, LENGTH, 4, 16)],
        {"size": (BATCH, LENGTH, 4, 16)},
    ),
    (
        "expand.default",
        "1 i3 -> i0 i1 i2 i3; i3 i0 i2",
        [(1, KEYS)],
        [(BATCH, 1, LENGTH, KEYS)],
        {"size": (BATCH, 1, LENGTH, KEYS)},
    ),
    (
        "repeat.default",
        "i1 i2 -> r0 (r1 i1) (r2 i2); i1 i2 r0",
        [(8, 64)],
        [(BATCH, 8, 64)],
        {"repeats": (BATCH, 1, 1)},
    ),
    ("squeeze.dim", "i0 1 i2 -> i0 i2; i0 i2", [(BATCH, 1, 64)], [(BATCH, 64)], {"dim": 1}),
    (
        "slice.Tensor",
        "i0 s0 -> i0 r0; r0",
        [(1, 512)],
        [(1, LENGTH)],
        {"dim": 1, "start": 0, "end": LENGTH},
    ),
    (
        "slice.Tensor",
        "i0 s0 -> i0 r0; i0",
        [(64, 512)],
        [(64, LENGTH)],
        {"dim": 1, "start": LENGTH - PAST},
    ),
    ("slice.Tensor", "i0 s0 i2 -> i0 r0 i2; i0 i2", [X], [(BATCH, 1, 64)], {"dim": 1, "start": -1}),
    (
        "slice.Tensor",
        "i0 (s0 e) -> i0 (r0 e); i0 e",
        [(BATCH, LENGTH * 2)],
        [X[:2]],
        {"dim": 1, "start": LENGTH},
    ),
    ("select.int", "i0 i1 i2 -> i0 i2; i0 i1 i2", [X], [(BATCH, 64)], {"dim": 1, "index": -1}),
    (
        "select.int",
        "i0 i1 i2 -> i0 i2; i0 i2",
        [X],
        [(BATCH, 64)],
        {"dim": 1, "index": LENGTH - PAST},
    ),
    (
        "split.Tensor",
        "i0 (s0 e) -> i0 (r0 e), i0 (r1 e); i0 e",
        [(BATCH, LENGTH * 2)],
        [X[:2]] * 2,
        {"split_size": LENGTH, "dim": 1},
    ),
    (
        "cat.default",
        "i0 s0 i2, i0 s1 i2 -> i0 r0 i2; i0 i2 r0",
        [(BATCH, PAST, 64), X],
        [(BATCH, KEYS, 64)],
        {"dim": 1},
    ),
    (
        "cat.default",
        "(s0 e) i1 i2, (s1 e) i1 i2 -> (r0 e) i1 i2; e i1 i2 r0",
        [X, X],
        [(BATCH * 2, LENGTH, 64)],
        {},
    ),
    (
        "stack.default",
        "i0 i1 i2, i0 i1 i2 -> i0 i1 n i2; i0 i1 i2",
        [X, X],
        [(BATCH, LENGTH, 2, 64)],
        {"dim": 2},
    ),
    (
        "constant_pad_nd.default",
        "i0 x1 -> i0 i1; i0 i1",
        [X[:2]],
        [(BATCH, KEYS)],
        {"pad": (0, PAST)},
    ),
    (
        "full.default",
        "-> i0 i1 i2 i3; i0 i2 i3",
        [],
        [(BATCH, 1, LENGTH, LENGTH)],
        {"size": (BATCH, 1, LENGTH, LENGTH)},
    ),
    ("arange.default", "-> i0; ; start: i0", [], [(LENGTH,)], {"end": LENGTH}),
    ("arange.start", "-> i0; i0", [], [(LENGTH,)], {"start": PAST, "end": KEYS}),
    ("triu.default", "r c -> r c; r c", [(LENGTH, KEYS)], [(LENGTH, KEYS)], {"diagonal": PAST + 1}),
    ("diagonal.default", "i0 i1 -> i0; ; triangles: i0 i1", [(LENGTH, LENGTH)], [(LENGTH,)], {}),
    ("sum.dim_IntList", "i0 i1 i2 -> i0 i2; i0 i1 i2", [X], [(BATCH, 64)], {"dim": (1,)}),
    ("mean.dim", "i0 i1 i2 -> i0 i2; i0 i2; sum: i0 i1 i2", [X], [(BATCH, 64)], {"dim": (1,)}),
    ("mean.dim", "i0 i1 i2 -> i0 i1; i0 i1; sum: i0 i1 i2", [X], [X[:2]], {"dim": (2,)}),
    ("argmax.default", "i0 i1 i2 -> i0 i1; i0 i1; first: i0 i1 i2", [X], [X[:2]], {"dim": -1}),
    ("argmax.default", "i0 i1 i2 -> i0 i2; i0 i2; first: i0 i1 i2", [X], [(BATCH, 64)], {"dim": 1}),
    (
        "_softmax.default",
        "i0 i1 i2 i3 -> i0 i1 i2 i3; i0 i1 i2; reduced: i0 i1 i2 i3",
        [SCORES],
        [SCORES],
        {"dim": -1},
    ),
    ("cumsum.default", "i0 i1 -> i0 i1; i0", [X[:2]], [X[:2]], {"dim": 1}),
    (
        "topk.default",
        "i0 i1 i2 -> i0 i1 r2, i0 i1 r2; i0 i1",
        [X],
        [(BATCH, LENGTH, 5)] * 2,
        {"k": 5},
    ),
    ("sort.default", "i0 i1 -> i0 i1, i0 i1; i0", [X[:2]], [X[:2]] * 2, {}),
    (
        "native_layer_norm.default",
        "i0 i1 i2, i2 -> i0 i1 i2, i0 i1 1; i0 i1; moments: i0 i1 i2",
        [X, (64,)],
        [X, (*X[:2], 1)],
        {"normalized_shape": (64,)},
    ),
    ("embedding.default", "v e, b0 b1 -> b0 b1 e; v e b0 b1", [(100, 64), X[:2]], [X], {}),
    (
        "index_select.default",
        "i0 i1 i2, j -> i0 j i2; i0 i1 i2 j",
        [X, (PAST,)],
        [(BATCH, PAST, 64)],
        {"dim": 1},
    ),
    (
        "gather.default",
        "i0 s0_1 i2, i0 s1_1 i2 -> i0 s1_1 i2; i0 s0_1 i2 s1_1",
        [X, (BATCH, PAST, 64)],
        [(BATCH, PAST, 64)],
        {"dim": 1},
    ),
)
"""What an op is called with, and the text of its rule; what may be split, by its body too."""

OPERANDS: Mapping[str, Sequence[str]] = {
    "embedding.default": ("weight", "indices"),
    "native_layer_norm.default": ("input", "weight"),
    "index_select.default": ("self", "index"),
    "gather.default": ("self", "index"),
}


@pytest.mark.parametrize(("kind", "expected", "operands", "results", "args"), NEEDED)
def test_what_transformers_need_is_split(
    kind: str, expected: str, operands: Shapes, results: Shapes, args: Mapping[str, Arg]
) -> None:
    names = OPERANDS.get(kind, ("self",) if len(operands) == 1 else ())
    assert described(f"aten.{kind}", names, operands, results, args) == expected
