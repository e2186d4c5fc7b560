"""Bytes that training steps move, every preset on every model of the zoo, against their ideals.

    python benchmarks/zoo_communication.py                     # all, on 8 and 2x4 processes
    python benchmarks/zoo_communication.py gpt2 t5 --only tensor

One step with AdamW in f32; the models and their sizes are in `zoo_models`, the hand-derived ideals
in `ideals`. MB per device: output bytes of collectives, and bytes on the wire of rings. Nothing may
move more than 5% beyond its ideal. What does is in `BEYOND`, with its reason, and is printed with
it; the exit code is 1 if something else does, or if something there doesn't any more.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from communication import Moved, measure
from ideals import ONE_AXIS, TWO_AXES, Part
from zoo_models import Example, examples

from autopar.frontend.torch import Recipe, capture
from autopar.ir.program import Program

LIMIT = 1.05
"""The most output bytes, in parts of the ideal's."""

ONE, TWO = 8, (2, 4)
"""Processes of meshes with one and two axes."""

HEAD = (
    "the product before the head is split by rows, and so norms by features, where sums of the"
    " gradients of q, k and v are scattered one by one"
)
PATCHES = "the projection of patches is split as well: its result is gathered in each pass"
UNEVEN = (
    "257 positions don't divide: gradients are gathered as they are and transposed, and those of"
    " q, k and v scattered one by one"
)
SHIFTED = "patches begin at position 1: their gradient is gathered, where rows might be shifted"
MASKS = "masks are split by keys before they are by queries"
PAIRS = "what a token's experts make of it is reduced before it is added up"
ROUTED = "tokens are sorted by expert over the whole batch, as on one device, so they are gathered"
HIDDEN_ROWS = "rows of experts are added up between their products, though they don't overlap"

BEYOND: Mapping[tuple[str, str], str] = {
    ("bert", "tensor"): HEAD,
    ("bert", "tensor,sequence"): HEAD,
    ("bert", "ddp,tensor"): HEAD,
    ("bert", "ddp,tensor,sequence"): HEAD,
    ("bert", "fsdp,tensor"): HEAD,
    ("vit", "tensor"): PATCHES,
    ("vit", "ddp,tensor"): PATCHES,
    ("vit", "fsdp,tensor"): PATCHES,
    ("vit", "tensor,sequence"): UNEVEN,
    ("vit", "ddp,tensor,sequence"): UNEVEN,
    ("vit", "context"): SHIFTED,
    ("vit", "zero1,context"): SHIFTED,
    ("t5", "context"): MASKS,
    ("mixtral", "tensor"): PAIRS,
    ("mixtral", "tensor,sequence"): PAIRS,
    **{
        ("mixtral", preset): ROUTED
        for preset in ("zero1", "zero2", "fsdp", "ddp,tensor", "ddp,tensor,sequence", "fsdp,tensor")
    },
    ("mixtral", "expert"): HIDDEN_ROWS,
    ("mixtral", "ddp,expert"): HIDDEN_ROWS,
}
"""Why a model moves more than it may with a preset."""


@dataclass(frozen=True)
class Cell:
    """A model with a preset.

    Attributes:
        preset: Names of presets.
        mesh, strategy: The compiler's options.
        ideal: What a hand-written program moves.
    """

    preset: str
    mesh: str
    strategy: str
    ideal: Moved


def cells(example: Example) -> Iterator[Cell]:
    """Yields the presets that a model has something for."""
    part = Part(example)
    for preset, ideal in ONE_AXIS.items():
        if _suits(preset, example):
            strategy = ",".join(f"{each}:a" for each in preset.split(","))
            yield Cell(preset, f"a={ONE}", strategy, ideal(part, ONE))
    ways, n = TWO
    for preset, both in TWO_AXES.items():
        if _suits(preset, example):
            first, *rest = preset.split(",")
            strategy = ",".join([f"{first}:a", *(f"{each}:b" for each in rest)])
            yield Cell(preset, f"a={ways},b={n}", strategy, both(part, n, ways))


def _suits(preset: str, example: Example) -> bool:
    words = preset.split(",")
    if "expert" in words:
        return bool(example.experts)
    return bool(example.stacks) or not {"tensor", "sequence", "context"} & {*words}


def step_of(example: Example) -> Program:
    """Returns the training step of a model."""
    optimizer = torch.optim.AdamW(example.model.parameters())
    return capture(example.model, example.batch, Recipe(example.loss, None, optimizer)).program


def run(name: str, example: Example, only: str) -> bool:
    """Prints a model's lines; returns whether all of them are as they should be."""
    program = step_of(example)
    right = True
    for cell in cells(example):
        if only not in cell.preset:
            continue
        found, ideal = measure(program, cell.mesh, cell.strategy), cell.ideal
        ratio = found.output / ideal.output
        reason = BEYOND.get((name, cell.preset), "")
        right &= (ratio > LIMIT) == bool(reason)
        verdict = reason or ("MORE THAN ALLOWED" if ratio > LIMIT else "")
        if reason and ratio <= LIMIT:
            verdict = f"no longer: {reason}"
        numbers = (found.output, ideal.output, found.wire, ideal.wire)
        columns = " ".join(f"{nbytes / 1e6:8.2f}" for nbytes in numbers)
        print(f"{name:12}{cell.preset:22}{columns}  {ratio:5.3f}  {verdict}".rstrip(), flush=True)
    return right


def main() -> int:
    """Measures and prints."""
    warnings.filterwarnings("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    known = examples()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(known))
    parser.add_argument("--only", default="", help="only presets with this word")
    options = parser.parse_args()
    print(f"{'MB per device':34}  output    ideal     wire    ideal  ratio")
    done = [run(name, known[name], options.only) for name in options.models or known]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
