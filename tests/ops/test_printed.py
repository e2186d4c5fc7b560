"""How rules read: a table of calls and their rules as text."""

from __future__ import annotations

import pytest
import torch

from autopar.ir.rules.local_arg import Grid, IfSplit, LocalArg, Size, Sizes
from autopar.ir.rules.rule import ALL_MONOIDS, Rule
from autopar.ir.rules.window import Window
from tests.ops.sample import Sample, b, f, i, s


def printed(rule: Rule) -> str:
    """Returns all of a rule, one property per line."""
    rows = [f"{sorted(row.operands)} {_monoids(row.monoids)}" for row in rule.linear]
    reduced = [f"{f} in {at}: {monoid}" for (f, at), monoid in rule.reduce.items()]
    properties = {
        "whole": " ".join(name for name in rule.sizes if name in rule.whole),
        "reduce": ", ".join(reduced),
        "once": ", ".join(f"{f}: {sorted(at)}" for f, at in rule.once.items()),
        "indexed": ", ".join(f"{factor}: {shard.kind}" for factor, shard in rule.indexed.items()),
        "linear": ", ".join(rows),
        "window": ", ".join(f"{name}: {_window(w)}" for name, w in rule.windows.items()),
        "local": ", ".join(f"{name} = {_local(arg)}" for name, arg in rule.local.items()),
        "body": ", ".join(body.name for body in rule.bodies),
    }
    lines = [f"  {name} {text}" for name, text in properties.items() if text]
    return "\n".join([str(rule), *lines])


def _monoids(monoids: frozenset[str]) -> str:
    return "any" if monoids == ALL_MONOIDS else " ".join(sorted(monoids))


def _window(window: Window) -> str:
    return f"{window.length} of {window.stride} * {window.of} + {window.start} or {window.fill}"


def _local(arg: LocalArg | tuple[str, ...] | int) -> str:
    if isinstance(arg, (tuple, int)):
        return _product(arg)
    if isinstance(arg, Sizes):
        return f"[{', '.join(map(_local, arg.entries))}]"
    if isinstance(arg, IfSplit):
        return f"{_local(arg.then)} if {arg.factor} else {_local(arg.otherwise)}"
    if isinstance(arg, Size):
        return f"{_product(arg.factors)} * {arg.scale}"
    if isinstance(arg, Grid):
        return f"grid[{', '.join(_product(dim) for dim in arg.dims)}]"
    index = f"{'end' if arg.end else 'start'}({arg.factor})"
    minus = f" - start({arg.minus})" if arg.minus else ""
    return f"{arg.base} + {arg.scale} * ({index}{minus})"


def _product(factors: tuple[str, ...] | int) -> str:
    return str(factors) if isinstance(factors, int) else "*".join(factors)


def conv(bias: bool, groups: int = 1) -> Sample:
    """Returns a convolution of 4 channels to 6."""
    x, w, ones = f(2, 4, 5, 5), f(6, 4 // groups, 3, 3), [1, 1]
    return s("convolution", x, w, f(6) if bias else None, ones, ones, ones, False, [0, 0], groups)


def calls() -> dict[str, Sample]:
    """Returns the calls of the table."""
    ids, two = i(2, 3, low=0, high=4), f(2, 3)
    query, key = f(2, 6, 5, 4), f(2, 3, 7, 4)
    image = f(2, 6, 5)
    return {
        "mm": s("mm", f(3, 4), f(4, 5)),
        "addmm": s("addmm", f(5), f(3, 4), f(4, 5)),
        "matmul, broadcast": s("matmul", f(2, 1, 3, 4), f(5, 4, 2)),
        "add, broadcast": s("add.Tensor", f(4, 1, 3), f(5, 1)),
        "add of a scalar": s("add.Scalar", f(4, 5), 2.5),
        "mul": s("mul.Tensor", f(4, 5), f(5)),
        "mul of an integer and a float": s("mul.Tensor", i(4, 5), f(5)),
        "where": s("where.self", b(4, 1), f(5), f(4, 5)),
        "cast": s("_to_copy", f(4, 5), dtype=torch.float32),
        "sum": s("sum.dim_IntList", f(3, 4, 5), [1], True),
        "mean": s("mean.dim", f(3, 4), [-1]),
        "argmax": s("argmax", f(3, 4), 1),
        "topk": s("topk", f(3, 7), 2),
        "softmax": s("_softmax", f(3, 4), -1, False),
        "layer norm": s("native_layer_norm", f(3, 4, 6), [6], f(6), f(6), 1e-5),
        "layer norm, backward": s(
            "native_layer_norm_backward", two, two, [3], f(2, 1), f(2, 1), f(3), f(3), [True] * 3
        ),
        "group norm": s("native_group_norm", image, f(6), f(6), 2, 6, 5, 3, 1e-5),
        "view, split heads": s("view", f(8, 5, 6), [8, 5, 2, 3]),
        "view, merge batch and heads": s("view", f(8, 3, 4, 4), [24, 4, 4]),
        "view, unaligned": s("view", f(6, 4), [4, 6]),
        "permute": s("permute", f(2, 3, 4), [2, 0, 1]),
        "expand": s("expand", f(3, 1), [2, 3, 5]),
        "repeat": s("repeat", f(3, 4), [2, 1]),
        "squeeze": s("squeeze.dims", f(1, 2, 3), [0, 1]),
        "slice, aligned": s("slice.Tensor", f(4, 12), 1, 4, 8),
        "slice": s("slice.Tensor", f(4, 6), 1, 1, 4),
        "split": s("split_with_sizes", f(3, 12), [6, 3, 3], 1),
        "cat": s("cat", [f(3, 4), f(3, 6)], 1),
        "pad": s("constant_pad_nd", f(3, 4), [1, 2]),
        "diagonal": s("diagonal", f(3, 4), 1),
        "select": s("select.int", f(3, 4), 0, -1),
        "tril": s("tril", f(3, 4)),
        "embedding": s("embedding", f(4, 5), ids),
        "index_select": s("index_select", f(5, 4), 0, i(3, low=0, high=5)),
        "index": s("index.Tensor", f(4, 5, 6), [None, i(2, 1, low=0, high=5), i(3, low=0, high=5)]),
        "scatter": s("scatter.src", f(4, 3), 0, ids, f(2, 3)),
        "index_add": s("index_add", f(5, 3), 0, i(4, low=0, high=5), f(4, 3)),
        "full": s("full", [3, 4], 2.5),
        "arange": s("arange.start_step", 3, 20, 4),
        "convolution": conv(bias=False),
        "convolution with bias": conv(bias=True),
        "convolution in groups": conv(bias=False, groups=2),
        "convolution of patches": s("conv2d", f(2, 3, 8, 4), f(5, 3, 4, 1), None, [4, 1]),
        "max pool": s("max_pool2d_with_indices", f(2, 3, 4, 4), [2, 2]),
        "pixel shuffle": s("pixel_shuffle", f(2, 12, 3, 5), 2),
        "attention, shared heads": s(
            "scaled_dot_product_attention", query, key, key, enable_gqa=True
        ),
        "nll loss, summed": s("nll_loss_forward", f(6, 4), i(6, low=0, high=4), None, 2, -100),
    }


GOLDEN = """
mm
m k, k n -> m n
  reduce k in 0: sum
  linear [0] sum, [1] sum

addmm
n, m k, k n -> m n
  whole k
  linear [0, 1] sum, [0, 2] sum
  body product

matmul, broadcast
b0 1 m k, b1 k n -> b0 b1 m n
  reduce k in 0: sum
  linear [0] sum, [1] sum

add, broadcast
i0 1 i2, i1 1 -> i0 i1 i2
  linear [0, 1] sum

add of a scalar
i0 i1 -> i0 i1
  linear [0] max min

mul
i0 i1, i1 -> i0 i1
  linear [0] sum, [1] sum, [0, 1] prod

mul of an integer and a float
i0 i1, i1 -> i0 i1
  linear [1] sum

where
i0 1, i1, i0 i1 -> i0 i1
  linear [1, 2] any, [1] all any max min, [2] all any max min

cast
i0 i1 -> i0 i1
  linear [0] sum, [0] max min

sum
i0 i1 i2 -> i0 1 i2
  reduce i1 in 0: sum
  linear [0] sum

mean
i0 i1 -> i0
  whole i1
  linear [0] sum
  body sum

argmax
i0 i1 -> i0
  whole i1
  body first

topk
i0 i1 -> i0 r1, i0 r1
  whole i1 r1

softmax
i0 i1 -> i0 i1
  whole i1
  body reduced

layer norm
i0 i1 i2, i2, i2 -> i0 i1 i2, i0 i1 1, i0 i1 1
  whole i2
  body moments

layer norm, backward
i0 i1, i0 i1, i0 1, i0 1, i1, i1 -> i0 i1, i1, i1
  whole i1
  reduce i0 in 1: sum, i0 in 2: sum
  linear [0] sum
  body moments

group norm
n (g c) x0, (g c), (g c) -> n (g c) x0, n g, n g
  whole c x0
  local N = n * 1, C = g*c * 1, group = g * 1
  body moments

view, split heads
v0 v1 (v2 v3) -> v0 v1 v2 v3
  linear [0] any
  local size = [v0, v1, v2, v3]

view, merge batch and heads
v0 v1 v2 v3 -> (v0 v1) v2 v3
  linear [0] any
  local size = [v0*v1, v2, v3]

view, unaligned
(v0 v2) (v3 v1) -> (v0 v4) (v5 v1)
  whole v2 v3 v4 v5
  linear [0] any
  local size = [v0*v4, v5*v1]

permute
i0 i1 i2 -> i2 i0 i1
  linear [0] any

expand
i1 1 -> i0 i1 i2
  linear [0] any
  local size = [i0, i1, i2]

repeat
i0 i1 -> (r0 i0) (r1 i1)
  linear [0] any
  local repeats = [r0, r1]

squeeze
1 i1 i2 -> i1 i2
  whole i1
  linear [0] any

slice, aligned
i0 (s0 e) -> i0 (r0 e)
  whole s0
  linear [0] any
  window s0: 1 of 1 * r0 + 1 or 0
  local start = 0 if r0 else e * 1, end = r0*e * 1 if r0 else e * 2

slice
i0 s0 -> i0 r0
  whole s0
  linear [0] any
  window s0: 1 of 1 * r0 + 1 or 0
  local start = 0 if r0 else 1, end = r0 * 1 if r0 else 4

split
i0 (s0 e) -> i0 (r0 e), i0 (r1 e), i0 (r2 e)
  whole s0 r0 r1 r2
  linear [0] any
  local split_sizes = [r0*e, r1*e, r2*e]

cat
i0 (s0 e), i0 (s1 e) -> i0 (r0 e)
  whole s0 s1
  linear [0, 1] any
  window s0: 1 of 1 * r0 + 0 or none, s1: 1 of 1 * r0 + -2 or none

pad
i0 x1 -> i0 i1
  whole x1
  linear [0] all any max min sum
  window x1: 1 of 1 * i1 + -1 or 0
  local pad = [0 if i1 else 1, 0 if i1 else 2]

diagonal
i0 i1 -> i0
  whole i0 i1
  linear [0] any
  body triangles

select
i0 i1 -> i1
  reduce i0 in 0: sum
  indexed i0: autopar.select
  linear [0] any

tril
r c -> r c
  linear [0] all any max min sum
  local diagonal = 0 + 1 * (start(r) - start(c))

embedding
v e, b0 b1 -> b0 b1 e
  reduce v in 0: sum
  indexed v: autopar.embedding
  linear [0] any

index_select
i0 i1, j -> j i1
  reduce i0 in 0: sum
  indexed i0: autopar.index_select
  linear [0] any

index
i0 i1 i2, j0 1, j1 -> i0 j0 j1
  reduce i1 in 0: sum, i2 in 0: sum
  indexed i1: autopar.index, i2: autopar.index
  linear [0] any

scatter
s0_0 i1, s1_0 i1, s1_0 i1 -> s0_0 i1
  whole s1_0
  indexed s0_0: autopar.scatter
  linear [0, 2] any, [0] all any max min, [2] all any max min

index_add
i0 i1, j, j i1 -> i0 i1
  reduce j in 0: sum
  once j: [0]
  indexed i0: autopar.index_add
  linear [0, 2] sum

full
-> i0 i1
  local size = [i0, i1]

arange
-> i0
  local start = 3 + 4 * (start(i0)), end = 3 + 4 * (end(i0))

convolution
n i x0 x1, o i k0 k1 -> n o y0 y1
  whole x0 x1 k0 k1
  reduce i in 0: sum
  linear [0] sum, [1] sum
  window x0: 3 of 1 * y0 + -1 or 0, x1: 3 of 1 * y1 + -1 or 0
  local padding = [0 if y0 else 1, 0 if y1 else 1]

convolution with bias
n i x0 x1, o i k0 k1, o -> n o y0 y1
  whole i x0 x1 k0 k1
  linear [0, 2] sum, [1, 2] sum
  window x0: 3 of 1 * y0 + -1 or 0, x1: 3 of 1 * y1 + -1 or 0
  local padding = [0 if y0 else 1, 0 if y1 else 1]
  body product

convolution in groups
n (g i) x0 x1, (g o) i k0 k1 -> n (g o) y0 y1
  whole x0 x1 k0 k1
  reduce i in 0: sum
  linear [0] sum, [1] sum
  window x0: 3 of 1 * y0 + -1 or 0, x1: 3 of 1 * y1 + -1 or 0
  local groups = g * 1, padding = [0 if y0 else 1, 0 if y1 else 1]

convolution of patches
n i x0 y1, o i k0 1 -> n o y0 y1
  whole x0 k0
  reduce i in 0: sum
  linear [0] sum, [1] sum
  window x0: 4 of 4 * y0 + 0 or 0

max pool
i0 i1 x0 x1 -> i0 i1 y0 y1, i0 i1 y0 y1
  whole x0 x1 y0 y1
  body placed

pixel shuffle
n0 (c a b) h w -> n0 c (h a) (w b)
  whole a b
  linear [0] any

attention, shared heads
b0 (h r) l e, b0 h s e, b0 h s d -> b0 (h r) l d
  whole e s d
  linear [2] sum
  body products

nll loss, summed
b0 c, b0 -> ,
  whole c
  reduce b0 in 0: sum, b0 in 1: sum
  body picked
"""


@pytest.mark.parametrize("name", list(calls()))
def test_printed(name: str) -> None:
    rule = calls()[name].rule
    blocks = dict(block.split("\n", 1) for block in GOLDEN.strip().split("\n\n"))
    assert rule is not None
    assert printed(rule) == blocks[name]
