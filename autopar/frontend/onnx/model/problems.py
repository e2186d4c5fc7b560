"""What is wrong with a model: collected first, raised once.

A user who must change an exporter wants to see everything that is in the way, not one obstacle
per run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autopar.base.errors import InvalidInputError

SHOWN = 25
"""How many problems a message spells out; the rest are counted."""

SAME_SHOWN = 3
"""How many places with the same problem a message spells out; of more, the first is named."""

LONGEST = 1000
"""Characters of a part of a problem that are spelled out."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        where: The node, tensor or input it is about; empty for the model as a whole.
        what: What is wrong, and why.
        advice: What to do about it; may be empty.
    """

    where: str
    what: str
    advice: str = ""

    def __str__(self) -> str:
        where, what, advice = map(_shortened, (self.where, self.what, self.advice))
        text = f"{where}: {what}" if where else what
        return f"{text} ({advice})" if advice else text


def _shortened(text: str) -> str:
    """Returns a text with its middle left out if it is long, as names in a file may be."""
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"


def _joined(problems: Sequence[Problem]) -> list[Problem]:
    """Returns problems, those of many places with the same words as one, which says how many."""
    places: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        places.setdefault((problem.what, problem.advice), []).append(problem)
    found = []
    for same in places.values():
        first, *more = same
        if len(same) > SAME_SHOWN:
            same = [replace(first, where=f"{first.where}, and {len(more)} more")]
        found.extend(same)
    return found


class ModelError(InvalidInputError):
    """An ONNX model can't be imported. Holds every problem that was found.

    Attributes:
        path: The model's file.
        problems: All of them, in the order of the file.
    """

    def __init__(self, path: str, problems: tuple[Problem, ...]) -> None:
        self.path = path
        self.problems = problems
        lines = [f"  - {problem}" for problem in _joined(problems)]
        if len(lines) > SHOWN:
            lines[SHOWN:] = [f"  ... and {len(lines) - SHOWN} more problems"]
        super().__init__("\n".join([f"can't import {path}:", *lines]))


@dataclass
class Problems:
    """Collects problems of one model.

    Attributes:
        path: The model's file, as the user gave it.
    """

    path: str
    found: list[Problem] = field(default_factory=list)
    _known: set[Problem] = field(default_factory=set)

    def add(self, where: str, what: str, advice: str = "") -> None:
        """Notes a problem; one that was noted before is left out."""
        problem = Problem(where, what, advice)
        if problem not in self._known:
            self._known.add(problem)
            self.found.append(problem)

    def raise_if_any(self) -> None:
        """Raises all problems as one error.

        Raises:
            ModelError: If there are any.
        """
        if self.found:
            raise ModelError(self.path, tuple(self.found))
