"""All random calls, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from tests.fuzz import elementwise, layout, reduction
from tests.fuzz.draw import Draw, Step

Call = Callable[[Draw], Step]


def _calls(module: ModuleType) -> dict[str, Call]:
    own = {name: it for name, it in vars(module).items() if callable(it)}
    return {name: it for name, it in own.items() if it.__module__ == module.__name__}


OPS: Mapping[str, Call] = {**_calls(elementwise), **_calls(layout), **_calls(reduction)}
"""A function that draws a call, by its name."""

MULTIPLYING = frozenset(
    {
        "attention",
        "binary",
        "contraction",
        "convolution",
        "division",
        "gram",
        "linear_in_pending",
        "matmul",
        "normalization",
        "project",
        "scalars",
        "vectors",
    }
)
"""Those whose formula may be rearranged: an infinite factor may then give no number."""
