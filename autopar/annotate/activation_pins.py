"""Pins of activations by name pattern: `layers.*: recompute`, from Python or a YAML file.

A pattern is a glob over the names of modules and of values, as `Pin`'s. A module that it matches is
a region, of which all but what leaves it is computed again; a value by its own name is itself.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.activations import OFFLOAD, check_choice, choice_of, kept
from autopar.ir.program import Op, Program

HOSTS = ("cpu", "host")
"""What users call the host's memory."""


@dataclass(frozen=True, slots=True)
class ActivationPin:
    """What becomes of the activations whose name, or whose module's name, matches.

    Attributes:
        pattern: A glob.
        choice: `save`, `recompute` or `offload`.
        place: Where the user wrote it.
    """

    pattern: str
    choice: str
    place: str

    @classmethod
    def from_choice(cls, pattern: str, choice: str, place: str = "") -> ActivationPin:
        """Returns a pin.

        Raises:
            AnnotationError: If there is no such choice.
        """
        place = place or f"activations[{pattern!r}]"
        return cls(pattern, check_choice(choice, place), place)


def apply_activations(program: Program, pins: Sequence[ActivationPin]) -> Program:
    """Returns a serial program whose forward ops say what becomes of what they make.

    Where several pins match an op, the last one counts. Only what a backward pass reads is kept,
    so a program without one has nothing that pins could be about.

    Args:
        program: The program. Values that are marked as offloaded are, too.
        pins: The pins.

    Raises:
        AnnotationError: If a pattern matches nothing, or the program has no backward pass.
    """
    main = program.main
    ops = list(main.ops)
    if pins and not any(op.phase == "backward" for op in ops):
        raise AnnotationError(
            f"{pins[0].place}: {program.name} has no backward pass, so no activation is kept for"
            " one; leave it out, or compile a training step"
        )
    for pin in pins:
        matched = list(_matching(pin, ops))
        if not matched:
            made = [name for op in ops if op.phase == "forward" for name in op.results]
            names = dict.fromkeys((*(module for name in made for module in _modules(name)), *made))
            raise AnnotationError(
                f"{pin.place}: pattern {pin.pattern!r} matches no module or activation of the"
                f" forward pass{near_misses(pin.pattern, names)}"
            )
        for at, region in matched:
            ops[at] = kept(ops[at], pin.choice, region)
    return _with_marks(program.with_main(replace(main, ops=tuple(ops))))


def _matching(pin: ActivationPin, ops: Sequence[Op]) -> Iterator[tuple[int, str]]:
    """Yields the positions of the ops that a pin matches, with their regions."""
    for at, op in enumerate(ops):
        if op.phase != "forward" or not op.results:
            continue
        region = next(filter(None, (_module(pin.pattern, name) for name in op.results)), "")
        if region:
            yield at, region
        elif any(_fits(pin.pattern, name) for name in op.results):
            yield at, ""


def _module(pattern: str, name: str) -> str:
    """Returns the outermost module of a value that a pattern matches, "" if it matches none."""
    return next((module for module in _modules(name) if _fits(pattern, module)), "")


def _fits(pattern: str, name: str) -> bool:
    """Whether a pattern matches a name, which may itself hold glob characters."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _modules(name: str) -> list[str]:
    """Returns the modules that a value is in, from the outside."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _with_marks(program: Program) -> Program:
    """Returns a program in which offloading is in the ops' plans and not in layouts."""
    main = program.main
    made = {name for op in main.ops if op.phase == "forward" for name in op.results}
    layouts = {name: main.values[name].dist for name in made}
    marked = {name for name, dist in layouts.items() if dist and dist.offload in HOSTS}
    if not marked:
        return program
    values, ops = dict(main.values), list(main.ops)
    for name in marked:
        value = values[name]
        assert value.dist is not None
        alone = value.origin is not None and value.origin.kind == "default"
        dist = None if alone else replace(value.dist, offload="")
        values[name] = replace(value, dist=dist, origin=None if alone else value.origin)
    for at, op in enumerate(ops):
        if op.phase == "forward" and not choice_of(op)[0] and not marked.isdisjoint(op.results):
            ops[at] = kept(op, OFFLOAD)
    return program.with_main(replace(main, values=values, ops=tuple(ops)))
