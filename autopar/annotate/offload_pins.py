"""Pins of what waits in the host's memory between uses: parameters and optimizer state.

A pattern is a glob, as `Pin`'s; only one with a slash, as `exp_avg*/encoder.*`, is about the state
of an optimizer. `parameters` and `optimizer` are all of these. Marks in a model say it of its
parameters.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autopar.annotate.activation_pins import HOSTS
from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.program import Port, Program

ALL = {"parameters": "parameter", "optimizer": "optimizer_state"}
"""What users call all of a role."""


@dataclass(frozen=True, slots=True)
class OffloadPin:
    """That stored tensors wait in the host's memory.

    Attributes:
        pattern: A glob over their labels, or a key of `ALL`.
        place: Where the user wrote it.
    """

    pattern: str
    place: str


def offloaded(program: Program, pins: Sequence[OffloadPin]) -> tuple[str, ...]:
    """Returns the labels of the stored inputs that wait in the host's memory, in their order.

    Counts of an optimizer's steps stay on the device, whatever a pattern says.

    Args:
        program: The serial program, with the user's marks.
        pins: The pins.

    Raises:
        AnnotationError: If a pattern matches nothing that may be offloaded.
    """
    ports = [port for port in program.signature.inputs if port.role in ALL.values() and port.shape]
    found = {port.label for port in ports if _is_marked(program, port)}
    for pin in pins:
        matched = [port.label for port in ports if _fits(pin, port)]
        if not matched:
            raise _unmatched(program, pin, ports)
        found.update(matched)
    return tuple(dict.fromkeys(port.label for port in ports if port.label in found))


def marked_offload(program: Program) -> bool:
    """Whether a mark in the model says that a parameter waits in the host's memory."""
    return any(_is_marked(program, port) for port in program.signature.inputs)


def without_offload(program: Program) -> Program:
    """Returns a program whose parameters are no longer marked: how they are split, marks say."""
    values = dict(program.main.values)
    for port in program.signature.inputs:
        value = values[port.name]
        if port.role == "parameter" and _is_marked(program, port):
            assert value.dist is not None
            alone = value.origin is not None and value.origin.kind == "default"
            dist = None if alone else replace(value.dist, offload="")
            values[port.name] = replace(value, dist=dist, origin=None if alone else value.origin)
    return program.with_main(replace(program.main, values=values))


def _is_marked(program: Program, port: Port) -> bool:
    dist = program.main.values[port.name].dist
    return port.role == "parameter" and dist is not None and dist.offload in HOSTS


def _fits(pin: OffloadPin, port: Port) -> bool:
    if pin.pattern in ALL:
        return port.role == ALL[pin.pattern]
    return any(_matches(pin.pattern, label, port.role) for label in (port.label, *port.aliases))


def _matches(pattern: str, label: str, role: str) -> bool:
    """Whether a pattern is about a label, which may itself hold glob characters."""
    if pattern == label:
        return True
    if role == "parameter":
        return "/" not in pattern and fnmatch.fnmatchcase(label, pattern)
    kinds, slash, parameters = pattern.partition("/")
    kind, _, parameter = label.partition("/")
    fits = fnmatch.fnmatchcase(kind, kinds) and fnmatch.fnmatchcase(parameter, parameters)
    return bool(slash) and fits


def _unmatched(program: Program, pin: OffloadPin, ports: Sequence[Port]) -> AnnotationError:
    if pin.pattern in ALL:
        what = "parameters" if pin.pattern == "parameters" else "optimizer state"
        return AnnotationError(
            f"{pin.place}: the program has no {what}, so nothing would wait in the host's memory;"
            " leave it out"
        )
    known = dict.fromkeys((*ALL, *(port.label for port in ports)))
    others = [port for port in program.signature.inputs if _named(pin, port)]
    if others:
        port = others[0]
        why = "is a number" if not port.shape else f"is of the role {port.role}"
        return AnnotationError(
            f"{pin.place}: {pin.pattern!r} matches {port.label}, which {why}; only parameters and"
            " optimizer state wait in the host's memory: name these"
        )
    hint = near_misses(pin.pattern, known)
    return AnnotationError(
        f"{pin.place}: pattern {pin.pattern!r} matches no parameter, and no optimizer state{hint}"
    )


def _named(pin: OffloadPin, port: Port) -> bool:
    return fnmatch.fnmatchcase(port.label, pin.pattern)
