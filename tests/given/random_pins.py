"""Pins drawn at random: any value of a program, split along any of its dimensions."""

from __future__ import annotations

import random

from autopar.annotate import Pin
from autopar.ir.expr.expression import planned
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program, Value

SPLITS_PER_PIN_SET = 5


def random_pins(program: Program, mesh: ProcessMesh, name: str, seed: int) -> tuple[Pin, ...]:
    """Returns pins of randomly chosen values, each split over at least one mesh axis.

    Values of all roles take part; sizes need not divide, and may be smaller than the axis.

    Args:
        program: The serial program.
        mesh: The mesh.
        name: What the program is called; other programs get other pins.
        seed: The number of the set of pins.
    """
    chance = random.Random(f"{name} {mesh.shape} {seed}")
    main = program.main
    renewed = {new for new, _ in main.aliases}  # these lie where their old content does
    free = [value for value in main.values.values() if value.name not in renewed]
    large = [value for value in free if max(_sizes(value), default=1) > 1]
    pins = []
    for value in chance.sample(large, min(len(large), SPLITS_PER_PIN_SET + 1)):
        shape = _sizes(value)
        entries: list[list[str]] = [[] for _ in shape]
        axes = chance.sample(mesh.dim_names, chance.randint(1, mesh.ndim))
        for axis in axes:
            entries[chance.choice([at for at, size in enumerate(shape) if size > 1])].append(axis)
        mapping = tuple(tuple(entry) if entry else -1 for entry in entries)
        pins.append(Pin(value.name, mapping, f"pin set {seed}"))
    return tuple(pins)


def _sizes(value: Value) -> list[int]:
    """Returns the sizes of a value, as planned."""
    return [*map(planned, value.global_shape)]
