"""Bytes that a training step moves between devices, against hand-derived ideals.

    python benchmarks/communication.py

The model is GPT-2 small in f32: batch 8, sequence 512, width 768, 12 heads, 12 layers, vocabulary
50304, the head tied to the embedding, layer norms first, q, k and v apart and with biases, learned
positions, cross-entropy as logsumexp minus the picked logit, SGD. It is captured on fake tensors:
no weight is made, nothing runs.

*Output* is the sum of what every collective leaves on a device, *wire* what a device sends in a
ring: 2(n-1)/n of the result of an all_reduce among n, (n-1)/n of that of an all_gather or an
all_to_all, n-1 times that of a reduce_scatter. *Gathered* is the most that gathered parameters take
at any time. XLA's Shardy, measured on the same pins, is given where it was.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from autopar.frontend.torch import Recipe, capture
from autopar.ir.expr.expression import Expr, IntExpr, evaluate
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.ops.table import MOVED
from autopar.ir.program import Op, Program, Value
from autopar.pipeline import CompileOptions, compile_program

BATCH, SEQUENCE, WIDTH, HEADS, LAYERS, VOCABULARY = 8, 512, 768, 12, 12, 50304

PINS = (
    "wte.weight=[tp,-1]",
    "*.up.weight=[tp,-1]",
    "*.up.bias=[tp]",
    "*.out.weight=[-1,tp]",
    "*.down.weight=[-1,tp]",
    "*ln*.weight=[-1]",
    "*ln*.bias=[-1]",
    "wpe.weight=[-1,-1]",
    "*.out.bias=[-1]",
    "*.down.bias=[-1]",
    "ids=[dp,-1]",
    "target=[dp,-1]",
)
APART = tuple(f"*.{part}.{of}" for part in "qkv" for of in ("weight=[tp,-1]", "bias=[tp]"))
MLP_PINS = ("w1=[-1,tp]", "w2=[tp,-1]", "x=[dp,-1]", "target=[dp,-1]")
FUSED = ("*.qkv.weight=[tp,-1]", "*.qkv.bias=[tp]")


class Block(nn.Module):
    """A causal transformer block, layer norms first."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        if fused:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        """Returns the activations behind the block."""
        batch, sequence, width = x.shape
        y: Tensor = self.ln1(x)
        parts = self.qkv(y).split(width, -1) if self.fused else (self.q(y), self.k(y), self.v(y))
        q, k, v = (part.view(batch, sequence, HEADS, -1).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // HEADS)
        mask = torch.ones(sequence, sequence, dtype=torch.bool).tril()
        shares = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((shares @ v).transpose(1, 2).reshape(batch, sequence, width))
        y = self.down(nn.functional.gelu(self.up(self.ln2(x)), approximate="tanh"))
        return x + y


class GPT2(nn.Module):
    """A language model with a tied head."""

    def __init__(self, layers: int, fused: bool) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block(fused) for _ in range(layers))
        self.ln = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns logits."""
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.ln(x) @ self.wte.weight.T
        return logits


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Returns the mean loss of the next tokens."""
    picked = logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (logits.logsumexp(-1) - picked).mean()


class MLP(nn.Module):
    """Two products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = (
            nn.Parameter(torch.empty(1024, 4096)),
            nn.Parameter(torch.empty(4096, 1024)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns as many features as it is given."""
        return torch.relu(x @ self.w1) @ self.w2


@cache
def language_step(
    layers: int, fused: bool = False, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
) -> Program:
    """Returns the training step of the language model."""
    with torch.device("meta"):
        model = GPT2(layers, fused)
    ids = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    return _step(model, (ids, ids), cross_entropy, optimizer)


@cache
def mlp_step() -> Program:
    """Returns the training step of the multilayer perceptron."""
    with torch.device("meta"):
        model = MLP()
    batch = torch.zeros(64, 1024), torch.zeros(64, 1024)
    return _step(model, batch, nn.functional.mse_loss, torch.optim.SGD)


def _step(
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    loss: Callable[..., Tensor],
    optimizer: type[torch.optim.Optimizer],
) -> Program:
    made = optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    return capture(model, batch, Recipe(loss=loss, optimizer=made)).program


LIMIT = 1.0002
"""The most output bytes, in parts of the ideal's."""


@dataclass(frozen=True)
class Moved:
    """What a device's program moves, in bytes.

    Attributes:
        output: Of results of collectives.
        wire: Sent in rings.
        gathered: The most that gathered values take at once.
        collectives: Their number.
    """

    output: float
    wire: float
    gathered: int = 0
    collectives: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.output + other.output, self.wire + other.wire)


WIRE: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: n - 1,
    "redistribute": lambda n: 1,
    "permute": lambda n: 1,
}
"""What a device sends in a ring of n, in parts of the result; at most, of pieces that move."""


def collective(kind: str, nbytes: float, processes: int, count: int = 1) -> Moved:
    """Returns what collectives move that leave so many bytes each."""
    return Moved(count * nbytes, count * nbytes * WIRE[kind](processes))


def measure(program: Program, mesh: str, strategy: str, pins: Sequence[str] = ()) -> Moved:
    """Returns what the program moves that the first rank runs."""
    options = CompileOptions.from_text(mesh=mesh, strategy=strategy, shards=pins, verify=False)
    partitioned = compile_program(program, options).partitioned
    assert partitioned.mesh is not None
    return _Meter(partitioned, partitioned.mesh).run()


class _Meter:
    """Walks over a partitioned program."""

    def __init__(self, program: Program, mesh: ProcessMesh) -> None:
        self.main = program.main
        self.mesh = mesh
        self.first = dict.fromkeys(mesh.dim_names, 0)

    def run(self) -> Moved:
        found = [op for op in self.main.ops if op.kind.startswith("comm.")]
        output = wire = 0.0
        for op in found:
            nbytes = sum(self._bytes(self.main.values[name]) for name in op.results)
            axes = op.arg("axes", ())
            assert isinstance(axes, tuple)
            parts = math.prod(self.mesh.axis_size(str(axis)) for axis in axes)
            output += nbytes
            wire += nbytes * WIRE[op.kind.removeprefix("comm.")](parts)
        return Moved(output, wire, self._gathered(), len(found))

    def _bytes(self, value: Value) -> int:
        return math.prod(self._size(size) for size in value.shape) * value.itemsize

    def _size(self, size: IntExpr) -> int:
        return evaluate(size, self.first) if isinstance(size, Expr) else size

    def _gathered(self) -> int:
        """Returns the most bytes that values hold which were gathered for forward or backward."""
        last: dict[str, int] = {}
        origin: dict[str, str] = {}
        for at, op in enumerate(self.main.ops):
            for name in op.operands:
                last[origin.get(name, name)] = at
            if self._is_view(op):
                origin[op.results[0]] = origin.get(op.operands[0], op.operands[0])
        change = [0] * (len(self.main.ops) + 1)
        for at, op in enumerate(self.main.ops):
            if op.kind == "comm.all_gather" and op.phase != "update":
                size = self._bytes(self.main.values[op.results[0]])
                change[at] += size
                change[last.get(op.results[0], at) + 1] -= size
        held = peak = 0
        for amount in change:
            held += amount
            peak = max(peak, held)
        return peak

    def _is_view(self, op: Op) -> bool:
        if op.kind.startswith("comm.") or len(op.operands) != 1 or len(op.results) != 1:
            return False
        rule = rule_of(op, self.main.values) if self._is_static(op) else None
        return rule is not None and not rule.work and rule.linear == MOVED

    def _is_static(self, op: Op) -> bool:
        shapes = (self.main.values[name].shape for name in (*op.operands, *op.results))
        return all(isinstance(size, int) for shape in shapes for size in shape)


@dataclass(frozen=True)
class Case:
    """A line of the table.

    Attributes:
        title: What is compiled.
        program: Its training step.
        mesh, strategy: For what, and how.
        ideal: What a hand-written program would move.
        pins: In place of presets.
        note: What others move.
    """

    title: str
    program: Callable[[], Program]
    mesh: str
    strategy: str
    ideal: Moved
    pins: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Ideals:
    """What hand-written programs move that train the language model.

    Attributes:
        layers: The model's depth.
        activations: Bytes of one activation of width 768 on a data-parallel process of two.
    """

    layers: int
    activations: int = field(default=4 * BATCH // 2 * SEQUENCE * WIDTH)

    @property
    def split(self) -> int:
        """Bytes of the parameters that weights split over tensor-parallel processes make up."""
        vectors = 3 * WIDTH + 4 * WIDTH
        return 4 * (VOCABULARY * WIDTH + self.layers * (12 * WIDTH * WIDTH + vectors))

    @property
    def whole(self) -> int:
        """Bytes of the other parameters: positions, layer norms, biases behind reductions."""
        return 4 * (SEQUENCE * WIDTH + self.layers * 6 * WIDTH + 2 * WIDTH)

    @property
    def vectors(self) -> int:
        """Bytes of all vectors, which ZeRO leaves whole."""
        return 4 * (self.layers * (9 + 4) * WIDTH + 2 * WIDTH)

    def ddp(self, n: int) -> Moved:
        """All parameters' gradients, and the loss, reduced once."""
        return collective("all_reduce", self.split + self.whole + 4, n)

    def zero(self, n: int, gathers: int) -> Moved:
        """Gradients of matrices scattered, parameters gathered once (1, 2) or twice (3)."""
        matrices = self.split + self.whole - self.vectors
        moved = collective("reduce_scatter", matrices / n, n)
        moved += collective("all_gather", matrices, n, gathers)
        return moved + collective("all_reduce", self.vectors + 4, n)

    def tensor(self) -> Moved:
        """Megatron over 4: two reductions per layer and pass, one for the table and its gradient.

        Cross-entropy reduces a maximum, a sum and the picked logit of every token.
        """
        moved = collective("all_reduce", self.activations, 4, 4 * self.layers + 2)
        moved += collective("all_reduce", 4 * BATCH // 2 * SEQUENCE, 4, 3)
        return moved + collective("all_reduce", self.split / 4 + self.whole + 4, 2)

    def sequence(self) -> Moved:
        """The same with every reduction as a scatter, and a gather before each product.

        What enters a product is gathered again for the gradient of its weight. Gradients of what
        is used on pieces of the sequence are reduced over all 8; of positions, each has a piece.
        """
        layers, part = self.layers, self.activations / 4
        moved = collective("all_gather", self.activations, 4, 6 * layers + 3)
        moved += collective("reduce_scatter", part, 4, 4 * layers + 2)
        moved += collective("all_reduce", 4 * BATCH // 2 * SEQUENCE, 4, 2)
        moved += collective("reduce_scatter", BATCH // 2 * SEQUENCE, 4)
        positions = 4 * SEQUENCE * WIDTH
        moved += collective("all_reduce", self.split / 4, 2)
        moved += collective("all_reduce", positions / 4, 2) + collective("all_gather", positions, 4)
        return moved + collective("all_reduce", self.whole - positions + 4, 8)

    def context(self) -> Moved:
        """Keys and values gathered over 4 in each pass, their gradients scattered; and `ddp`.

        Of positions, each process has a piece.
        """
        moved = collective("all_gather", self.activations, 4, 4 * self.layers)
        moved += collective("reduce_scatter", self.activations / 4, 4, 2 * self.layers)
        positions = 4 * SEQUENCE * WIDTH
        moved += collective("all_reduce", positions / 4, 2) + collective("all_gather", positions, 4)
        return moved + collective("all_reduce", self.split + self.whole - positions + 4, 8)


def cases(layers: int) -> list[Case]:
    """Returns the lines of the table."""
    ideals = Ideals(layers)

    def plain() -> Program:
        return language_step(layers)

    def fused() -> Program:
        return language_step(layers, fused=True)

    def adamw() -> Program:
        return language_step(layers, optimizer=torch.optim.AdamW)

    mlp = collective("all_reduce", 4 * 64 // 2 * 1024, 4)
    mlp += collective("all_reduce", 4 * 2 * 1024 * 4096 / 4 + 4, 2)
    both, megatron = "dp=2,tp=4", "ddp:dp,tensor:tp"
    pinned, context = ideals.tensor(), "ddp:dp,context:cp"
    sequence = f"{megatron},sequence:tp"
    return [
        Case("pins", plain, both, "none", pinned, (*PINS, *APART), note="XLA 629.7 MB"),
        Case("pins, fused qkv", fused, both, "none", pinned, (*PINS, *FUSED), note="XLA 780.7 MB"),
        Case(megatron, plain, both, megatron, pinned),
        Case(f"{megatron}, fused", fused, both, megatron, pinned),
        Case("+ sequence:tp", plain, both, sequence, ideals.sequence()),
        Case(context, plain, "dp=2,cp=4", context, ideals.context()),
        Case("ddp", plain, "8", "ddp", ideals.ddp(8)),
        Case("zero1, AdamW", adamw, "8", "zero1", ideals.zero(8, 1)),
        Case("zero2", plain, "8", "zero2", ideals.zero(8, 1)),
        Case("fsdp", plain, "8", "fsdp", ideals.zero(8, 2)),
        Case("fsdp, AdamW", adamw, "8", "fsdp", ideals.zero(8, 2)),
        Case("MLP, pins", mlp_step, both, "none", mlp, MLP_PINS, note="XLA 8.528 MB"),
    ]


def main() -> int:
    """Measure and print; returns 1 if something moves more than it may."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=LAYERS, help="depth of the model")
    layers = parser.parse_args().layers
    print(
        f"{'MB per device':26}  {'output':>8} {'ideal':>8} {'wire':>8} {'ideal':>8} {'gathered':>8}"
    )
    worst = 0.0
    for case in cases(layers):
        found = measure(case.program(), case.mesh, case.strategy, case.pins)
        columns = (found.output, case.ideal.output, found.wire, case.ideal.wire, found.gathered)
        numbers = " ".join(f"{nbytes / 1e6:8.2f}" for nbytes in columns)
        ratio = found.output / case.ideal.output
        verdict = "" if ratio <= LIMIT else "  MORE THAN ALLOWED"
        print(f"{case.title:26}  {numbers}  {found.collectives} collectives {case.note}{verdict}")
        worst = max(worst, ratio)
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
