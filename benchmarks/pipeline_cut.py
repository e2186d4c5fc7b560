"""Where to cut a model whose layers aren't alike: automatic cuts beside as many layers per stage.

    python benchmarks/pipeline_cut.py

An embedding of 50,000 words, 12 layers of which one is three times as wide, and a head over all
words, in two processes with one thread each. Printed is what is predicted of a step, and the median
of what it takes.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from pipeline import autopar_step, loss, measured
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.cost import evaluate_together
from autopar.ir.parts import programs_of

LAYERS, WIDTH, WORDS, TOKENS, ROWS = 12, 256, 50_000, 64, 2
MICROBATCHES, PROCESSES = 8, 2
WIDE = 1
"""Which layer is three times as wide."""


class Model(nn.Module):
    """An embedding, layers and a head.

    Args:
        stages: In how many stages of as many layers it is marked; 0 for no marks.
    """

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        inner = [(12 if at == WIDE else 4) * WIDTH for at in range(LAYERS)]
        self.up = nn.ModuleList(nn.Linear(WIDTH, width) for width in inner)
        self.down = nn.ModuleList(nn.Linear(width, WIDTH) for width in inner)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.stages = stages

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for at, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            stage = annotate.pipeline_stage(at * self.stages // LAYERS)
            with stage if self.stages else nullcontext():
                x = x + down(F.gelu(up(x)))
        logits: Tensor = self.head(x)
        return logits


def batch() -> tuple[Tensor, Tensor]:
    """Returns inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    shape = (MICROBATCHES * ROWS, TOKENS)
    ids, target = (torch.randint(0, WORDS, shape, generator=generator) for _ in range(2))
    return ids, target


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--schedule", default="1f1b", help="in which order stages work")
    options = parser.parse_args()
    print(f"{'ms per step':30}{'predicted':>12}{'measured':>12}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, stages in (("as many layers per stage", PROCESSES), ("automatic", 0)):
            rows.append(seconds_of(Path(folder) / name, stages, options.schedule))
            print(f"{name:30}" + "".join(f"{1e3 * each:>12.1f}" for each in rows[-1]))
    equal, automatic = rows
    ratios = (one / other for one, other in zip(equal, automatic, strict=True))
    print(f"{'times as fast':30}" + "".join(f"{each:>12.2f}" for each in ratios))


def seconds_of(build: Path, stages: int, schedule: str) -> tuple[float, float]:
    """Returns the predicted and the measured seconds of a step."""
    torch.manual_seed(0)
    model = Model(stages)
    made = autopar.compile(
        model,
        batch(),
        mesh=f"pp={PROCESSES}",
        strategy=None,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        accumulate=MICROBATCHES,
        pipeline="pp",
        schedule=schedule,
    )
    made.save(build)
    kinds = programs_of(made.partitioned).kinds
    predicted = evaluate_together(kinds, made.options.cluster)
    taken, _ = measured(PROCESSES, autopar_step, build, batch)
    return max(each.overlapped_seconds for each in predicted), taken


if __name__ == "__main__":
    main()
