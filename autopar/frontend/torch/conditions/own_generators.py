"""Generators of random numbers that a model, or the file that it is written in, has as its own.

Python's and NumPy's shared ones are watched by `draws`; of others, the state tells that `forward`
has drawn from them.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.conditions.draws import drawn_at


@contextmanager
def undrawn(model: nn.Module) -> Iterator[None]:
    """Refuses a model of which code within draws from such a generator.

    Raises:
        InvalidInputError: If a number was drawn. Names the generator.
    """
    kept = _generators(model)
    before = {name: _state(each) for name, each in kept.items()}
    with _seeded():
        yield
    for name, each in kept.items():
        if _state(each) != before[name]:
            raise InvalidInputError(
                f"forward draws from {name}, a generator of Python's or NumPy's, and a program"
                " would have the numbers of this one draw in all steps; draw with torch, or switch"
                " off what draws"
            )


@contextmanager
def _seeded() -> Iterator[None]:
    """Refuses generators that this thread makes within without a seed: each draws otherwise."""
    make, thread = np.random.default_rng, threading.get_ident()

    def made(seed: Any = None) -> np.random.Generator:
        if seed is None and threading.get_ident() == thread:
            raise drawn_at(sys._getframe(1))
        return make(seed)

    np.random.default_rng = made
    try:
        yield
    finally:
        np.random.default_rng = make


def _generators(model: nn.Module) -> dict[str, Any]:
    """Returns the generators that are attributes of modules, or global where those are defined."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        found |= _named(path or type(module).__name__, vars(module))
    for kind in dict.fromkeys(type(each) for each in model.modules()):
        found |= _named(kind.__name__, vars(kind))
        found |= _named(kind.__module__, vars(sys.modules.get(kind.__module__, object)))
    return found


def _named(owner: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{owner}.{name}": each for name, each in values.items() if isinstance(each, _GENERATORS)
    }


_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)


def _state(generator: Any) -> object:
    """Returns the state of a generator, which can be compared."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _comparable(generator.get_state(legacy=False))
    return _comparable(generator.bit_generator.state)


def _comparable(state: Any) -> object:
    if isinstance(state, Mapping):
        return {name: _comparable(each) for name, each in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state
