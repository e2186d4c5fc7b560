"""The text form of programs: for people, for tests, and for editors. Prints and parses.

    program "mlp" serial
    file mlp = "mlp.onnx"
    mesh dp=2, tp=4

    func main {
      input     %x: f32[8@dp, 1024] ~annotated("--shard x=[dp]")
      parameter %w: f32[1024, 768@tp] as "fc.weight"
      %h: f32[8@dp, 768@tp] = aten.mm.default(self=%x, mat2=%w) {m: 8@dp, n: 768@tp} loc(mlp)
      %y: f32[8@dp, 768@tp] = aten.relu.default(self=%h) {i0: 8@dp, i1: 768@tp} loc(mlp)
      return %y as "logits"
    }

By hand, less will do: without the first line it is a serial program, without `func main { }` the
lines are those of main, and whatever follows a type or an op may be left out, in any order:

    mesh tp=4
    input %x: f32[8, 4]
    %y: f32[8, 4] = aten.relu.default(self=%x)
    return %y

The lines:

    program "name" LEVEL         serial, partitioned or executable
    file NAME = "path"           a short name for `loc`
    mesh dp=2, tp=4              the program's mesh, with process ids from 0;
      ... ids [0..3, 8..11]      with others; `... parent @m1` as a part of another mesh
    mesh @m1 x=4                 another mesh. `mesh[tp=0]` and `@m1[x=0]` are slices
    size $batch = 0..64 planned 8
                                 a size that is left open, what it may be, and for which size
                                 decisions are made. `0..` has no end; `size $batch` is `0..`,
                                 `32..960 step 32` are multiples of 32
    relation $past + $length <= 512
                                 what must hold of open sizes in each call, beyond their ranges;
                                 with <= or ==, and a `loc`
    given(scale=1.0)             what is no tensor in the example of the model, by path;
    defaults(mask=none)          what its `forward` has by default, and
    arguments("x", "scale")      what may be given by position. `example unknown`: none is noted
    signature { ... }            the ports, where the lines of main don't tell them
    func NAME { ... }            a function:
      ROLE %x: TYPE ...            an input
      %y: TYPE ..., %z: ... = OP   an op and its results. `value %x: TYPE` is a value without op
      alias %y -> %x               %y is the new content of %x
      return %y, %z

A TYPE is a dtype and a shape, with the mesh axes that split a dimension: `f32[8@dp, 9@(dp,tp)]`,
`f32[(12@tp)(64)]` with sub-dimensions, `f32[$batch@dp, ($length + 1)@tp]` with open sizes. Local
shapes stand before their layout: `f32[dp * 4 + 1, 64] of [9@dp, 64]`. After it, in any order:

    sum@tp                 pending a reduction
    replicated             has a layout that splits nothing. Without it: has no layout, unless it
                           is the result of an op with a choice, which then isn't `undistributed`
    mask [0..3]            held by these processes only
    offload cpu            held there between uses
    on mesh[pp=0]          on another mesh than the program's
    gradient               the role, of results
    as "label"             the user's name, of inputs and outputs of main
    box [8[dp * 4; 4], 64] its global shape and, where a rank has a piece, [start; length]
    ~implied("by %x")      the origin. Results of an op that has one have the same, unless `~none`
    fill 0.0               what its elements are unless something else is given, of inputs of main
    part "w" [16, 768] from [8, 0]
                           where it lies in a larger tensor, of inputs and outputs of main
    loc("file", 12, "name")

An OP is `kind(name=argument, ...)`. Arguments: `%x`, `[1, 2]`, `"text"`, `1.0`, `true`, `none`,
`f32`, and integers, which may be expressions of the rank's place in the mesh and of open sizes,
like `min(4, 9 - dp * 4)` or `$batch // 2`. After it:

    {m: 8@dp, k: 64@tp; body split; pending sum@tp(0, 1); on mesh[pp=0]}      its OpDist
    ~chosen   stage=1   microbatch=2   loops(microbatch=8, head=4)   phase=backward
    plan(save=cpu)   loc(...)

Names with other characters than letters, digits and `._/$-` stand in quotes: `%"a b"`. In quotes,
`\\n \\t \\r \\" \\\\ \\u{1f600}` are escapes. `#` begins a comment. Line breaks don't matter.
"""

from __future__ import annotations

from autopar.ir.text.cursor import TextError
from autopar.ir.text.parse import parse_program
from autopar.ir.text.print import message_context, print_deployment, print_op, print_program

__all__ = [
    "TextError",
    "message_context",
    "parse_program",
    "print_deployment",
    "print_op",
    "print_program",
]
