"""What stages of a pipeline keep for the backward pass: beside what torch's autograd keeps.

    python benchmarks/pipeline_memory.py

A GPT of 8 layers (width 256, sequence 128, 2 rows per microbatch, 8 microbatches) in 4 stages.
Autograd's bytes are those of the tensors that it saves of a microbatch on each stage, each memory
once and without parameters, times the microbatches that a stage keeps by the schedule; ours are
those of the predicted timeline, by which memory is planned. MiB per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.cost import memory_timeline
from autopar.cost.memory.buffers import SAVED
from autopar.ir.parts import programs_of

LAYERS, WIDTH, HEADS, WORDS, TOKENS, ROWS = 8, 256, 8, 512, 128, 2
STAGES, MICROBATCHES = 4, 8
MIB = 1 << 20


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inside, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.inside(self.before(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        inner: Tensor = self.down(F.gelu(self.up(self.behind(x))))
        return x + inner


class Model(nn.Module):
    """A GPT whose layers are in stages of as many."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def stage(self, number: int, x: Tensor) -> Tensor:
        """Returns what a stage makes of what the one before made."""
        each = LAYERS // STAGES
        x = self.tokens(x) if number == 0 else x
        for layer in self.layers[number * each : (number + 1) * each]:
            x = layer(x)
        if number < STAGES - 1:
            return x
        logits: Tensor = self.head(self.norm(x))
        return logits

    def forward(self, x: Tensor) -> Tensor:
        for number in range(STAGES):
            with annotate.pipeline_stage(number):
                x = self.stage(number, x)
        return x


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Returns the loss of a microbatch."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    model = Model()
    once = saved_by_autograd(model)
    kept = {"gpipe": [MICROBATCHES] * STAGES, "1f1b": [STAGES - at for at in range(STAGES)]}
    for schedule, counts in kept.items():
        theirs = [nbytes * count for nbytes, count in zip(once, counts, strict=True)]
        ours = saved_by_autopar(model, schedule)
        ratio = max(one / other for one, other in zip(ours, theirs, strict=True))
        print(f"{schedule:6}  autograd {_row(theirs)}   autopar {_row(ours)}   at most {ratio:.2f}")


def _row(nbytes: Sequence[int]) -> str:
    return " ".join(f"{each / MIB:6.2f}" for each in nbytes)


def saved_by_autograd(model: Model) -> list[int]:
    """Returns the bytes that autograd keeps of one microbatch, per stage."""
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    x = torch.randint(0, WORDS, (ROWS, TOKENS))
    found = []
    for number in range(STAGES):
        kept: dict[int, int] = {}

        def keep(saved: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = saved.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return saved

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
            made = model.stage(number, x)
            if number == STAGES - 1:
                loss(made, x.new_zeros(ROWS, TOKENS, dtype=torch.int64))
        found.append(sum(kept.values()))
        x = made.detach().requires_grad_()
    return found


def saved_by_autopar(model: Model, schedule: str) -> list[int]:
    """Returns the most bytes of activations that each stage keeps for the backward pass."""
    shape = (ROWS * MICROBATCHES, TOKENS)
    step = autopar.compile(
        model,
        (torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)),
        mesh=f"pp={STAGES}",
        strategy=None,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        accumulate=MICROBATCHES,
        pipeline="pp",
        schedule=schedule,
    )
    found = []
    for part, coords in programs_of(step.partitioned).kinds:
        change = [0] * (len(part.main.ops) + 2)
        for each in memory_timeline(part, coords).lifetimes.buffers:
            if each.kind == SAVED:
                change[each.first] += each.nbytes
                change[each.last + 1] -= each.nbytes
        found.append(max(accumulate(change)))
    return found


if __name__ == "__main__":
    main()
