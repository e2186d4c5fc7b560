"""The text of a dims_mapping: `[-1, tp]`, `[(dp,tp), None]`, `[0, -1]`."""

from __future__ import annotations

import re

from autopar.ir.errors import AnnotationError

Entry = int | str | None | tuple[int | str, ...]
"""One entry of a dims_mapping: -1 or None (not split), an axis, or several axes."""

_TOKEN = re.compile(r"\s*(?:(-?\d+)|([A-Za-z_]\w*)|'([^']*)'|\"([^\"]*)\"|([\[\](),])|(\S))")


def parse_dims_mapping(text: str) -> tuple[Entry, ...]:
    """Returns the entries of a dims_mapping.

        >>> parse_dims_mapping("[-1, tp, (dp,1), None]")
        (-1, 'tp', ('dp', 1), None)

    Raises:
        AnnotationError: If the text is not a bracketed list of such entries.
    """
    entries: list[Entry] = []
    group: list[int | str] | None = None
    expect_item = True
    tokens = _tokens(text)
    if not tokens or tokens[0] != ("[", None) or tokens[-1] != ("]", None):
        raise _error(text, "it must be a list in brackets")
    for mark, item in tokens[1:-1]:
        if mark == "," and (not expect_item or group is not None):
            expect_item = True
        elif mark == "(" and group is None and expect_item:
            group = []
        elif mark == ")" and group is not None:
            entries.append(tuple(group))
            group, expect_item = None, False
        elif mark == "item" and expect_item:
            expect_item = False
            if group is None:
                entries.append(item)
            elif item is None:
                raise _error(text, "None can't be one of several axes")
            else:
                group.append(item)
        else:
            raise _error(text, f"unexpected {item if mark == 'item' else mark!r}")
    if group is not None:
        raise _error(text, "a '(' is not closed")
    return tuple(entries)


def _tokens(text: str) -> list[tuple[str, int | str | None]]:
    found: list[tuple[str, int | str | None]] = []
    for match in _TOKEN.finditer(text.strip()):
        number, name, single, double, mark, stray = match.groups()
        if stray:
            raise _error(text, f"unexpected {stray!r}")
        if mark:
            found.append((mark, None))
        elif number is not None:
            found.append(("item", int(number)))
        else:
            word = next(word for word in (name, single, double) if word is not None)
            found.append(("item", None if word in ("None", "null") else word))
    return found


def _error(text: str, why: str) -> AnnotationError:
    return AnnotationError(
        f"dims_mapping {text!r}: {why}; write one entry per dimension, as [-1, tp, (dp,tp)]"
    )
