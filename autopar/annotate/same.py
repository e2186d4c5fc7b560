"""Which values of two captures of one model are the same.

For a batch of another shape a model may compute a little more or less, and what is numbered in the
order of the graph, as `blocks.0.relu_3`, is then called otherwise. So a value is known by where the
model computes it: module, line, kind of op, phase, microbatch, and which of those it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from autopar.ir.program import Program


def counterparts(first: Program, second: Program) -> Mapping[str, str]:
    """Returns the names that values of a program have in another capture of the model.

    What one of the two computes more often at the same place than the other has none.
    """
    mine, theirs = _places(first), _places(second)
    counts = tuple(Counter(place[0] for place in found.values()) for found in (mine, theirs))
    by_place = {place: name for name, place in theirs.items()}
    return {
        name: by_place[place]
        for name, place in mine.items()
        if place in by_place and counts[0][place[0]] == counts[1][place[0]]
    }


def _places(program: Program) -> dict[str, tuple[Hashable, int]]:
    """Returns where each value of `main` comes from, and its number among those from there."""
    main = program.main
    found: dict[str, tuple[Hashable, int]] = {
        port.name: (("input", port.label), 0) for port in program.signature.inputs
    }
    seen: Counter[Hashable] = Counter()
    for op in main.ops:
        for at, name in enumerate(op.results):
            if main.values[name].role == "gradient":
                found[name] = (("gradient", name), 0)
                continue
            module = name.rpartition(".")[0]
            place = (module, op.loc, op.kind, op.phase, op.microbatch, at)
            found[name] = (place, seen[place])
            seen[place] += 1
    return found
