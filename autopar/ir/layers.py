"""Layers: which part of a model an op belongs to, read off the names of values.

Values are named after the module that computes them (`layers.3.attn.mm`) or its ONNX node
(`encoder/layer.3/attn/MatMul_output_0`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from autopar.ir.collectives import is_collective
from autopar.ir.program import Op

_COPY = re.compile(
    r"(\.(new|\d+|forward|backward|part|sides|flat|room|before|after|s\d+|all(?=\.(room|before|after))))+$"
)
"""What ends the names of new contents, of values that were brought elsewhere, and of what a loop
takes, makes room for and leaves."""


def layer_of(op: Op) -> str:
    """Returns the qualified name of the module that an op belongs to; "" for none."""
    name = op.results[0] if op.results else ""
    if is_collective(op.kind) and op.operands:
        name = op.operands[0]
    if op.phase == "update" or name.startswith("grad/"):
        name = name.partition("/")[2] or name
    if "/" not in name and not op.loc.line and "/" in op.loc.name:
        name = op.loc.name
    if "/" in name:
        return name.rpartition("/")[0].strip("/").replace("/", ".")
    return _COPY.sub("", name).rpartition(".")[0]


def grouped(layers: Sequence[str], depth: int | None) -> list[str]:
    """Returns, for each of these names, the layer that stands for it.

    Args:
        layers: Qualified names, one per op.
        depth: How many parts of names to keep. None for those up to a number, which tells repeated
            layers apart: the first one, or a later one where that leaves most ops in one layer.
    """
    if depth is not None:
        return [".".join(layer.split(".")[:depth]) for layer in layers]
    names = {layer: _cut(layer, 1) for layer in set(layers)}
    for numbers in range(2, 5):
        counts = Counter(names[layer] for layer in layers)
        large = {name for name, count in counts.items() if 2 * count > len(layers)}
        names = {
            layer: _cut(layer, numbers) if name in large else name for layer, name in names.items()
        }
    return [names[layer] for layer in layers]


def _cut(layer: str, numbers: int) -> str:
    """Returns a name up to one of its numbers, or two parts behind the last if it has fewer."""
    parts = layer.split(".")
    numbered = [at for at, part in enumerate(parts) if part.isdigit()]
    if len(numbered) >= numbers:
        return ".".join(parts[: numbered[numbers - 1] + 1])
    return ".".join(parts[: (numbered[-1] if numbered else -1) + 3])
