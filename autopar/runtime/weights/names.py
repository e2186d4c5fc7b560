"""Whether weights that the user gives are those of the program, by their names."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence

from autopar.base.errors import InvalidInputError, near_misses

SHOWN = 3
"""Names that a message lists."""


def check_names(given: Mapping[str, Collection[str]], wanted: Iterable[Sequence[str]]) -> None:
    """Refuses weights none of which the program has, and warns of single ones.

    Args:
        given: The names of the tensors of what the user gave, by its path.
        wanted: The names of each weight of the program.

    Raises:
        InvalidInputError: If the program has none of a file's tensors.
    """
    known = {name: names[0] for names in wanted for name in names}
    for path, names in given.items():
        surplus = [name for name in names if name not in known]
        if not surplus:
            continue
        found = {known[name] for name in names if name in known}
        open_names = [name for name, first in known.items() if first not in found]
        hint = _hint(surplus, open_names)
        if not found:
            raise InvalidInputError(
                f"{path} has none of the program's weights but {_some(surplus)}, where the program"
                f" has {_some(open_names)}{hint}; give weights of the model that was compiled,"
                " by its names"
            )
        warnings.warn(
            f"{path} has tensors that the program doesn't have, which are not used:"
            f" {_some(surplus)}{hint}",
            stacklevel=2,
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more


def _hint(surplus: Sequence[str], wanted: Sequence[str]) -> str:
    """Returns what names seem to be meant: others with a prefix more or less, or similar ones."""
    name = surplus[0]
    for other in wanted:
        if other.endswith(f".{name}"):
            return f"; its names lack {other.removesuffix(name)!r} at their start"
        if name.endswith(f".{other}"):
            return f"; its names have {name.removesuffix(other)!r} too much at their start"
    return near_misses(name, wanted)
