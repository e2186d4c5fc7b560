"""The text of a dims_mapping: `[-1, tp]`, `[(dp,tp), None]`, `[0, -1]`, `[(3)(12@tp)(64), -1]`.

Several axes may stand in brackets too, `[[dp,tp], None]`, as in plan files. The last one says how a
dimension is split exactly: into 3 times 12 times 64, of which the 12 are split over tp.
"""

from __future__ import annotations

import re

from autopar.base.errors import AnnotationError
from autopar.ir.layout import DimLayout, SubDim

Entry = int | str | None | tuple[int | str, ...] | DimLayout
"""One entry of a dims_mapping: -1 or None (not split), an axis, several axes, or sub-dimensions."""

CLOSING = {"(": ")", "[": "]"}
"""What several axes stand in."""

_SUB_DIM = re.compile(r"\(\s*([0-9]{1,18})\s*(?:@\s*(?:(\w+)|\(([\w\s,]+)\))\s*)?\)\s*")
_SUB_DIMS = re.compile(rf"\s*((?:{_SUB_DIM.pattern}){{2,}})")
_TOKEN = re.compile(
    r"\s*(?:(-?[0-9]{1,18}\b)|([^\W\d]\w*)|'([^']*)'|\"([^\"]*)\"|([\[\](),])|(\S))"
)


def parse_dims_mapping(text: str) -> tuple[Entry, ...]:
    """Returns the entries of a dims_mapping.

        >>> parse_dims_mapping("[-1, tp, (dp,1), None]")
        (-1, 'tp', ('dp', 1), None)

    Raises:
        AnnotationError: If the text is not a bracketed list of such entries.
    """
    entries: list[Entry] = []
    group: list[int | str] | None = None
    expect_item, opened = True, "("
    tokens = _tokens(text)
    if not tokens or tokens[0] != ("[", None) or tokens[-1] != ("]", None):
        raise _error(text, "it must be a list in brackets")
    for mark, item in tokens[1:-1]:
        if mark == "," and (not expect_item or group is not None):
            expect_item = True
        elif mark in CLOSING and group is None and expect_item:
            group, opened = [], mark
        elif group is not None and mark == CLOSING[opened]:
            entries.append(tuple(group))
            group, expect_item = None, False
        elif mark == "item" and expect_item:
            expect_item = False
            if group is None:
                entries.append(item)
            elif not isinstance(item, (int, str)):
                raise _error(text, "what is no axis can't be one of several axes")
            else:
                group.append(item)
        else:
            raise _error(text, f"unexpected {item if mark == 'item' else mark!r}")
    if group is not None:
        raise _error(text, f"a {opened!r} is not closed")
    return tuple(entries)


def _tokens(text: str) -> list[tuple[str, Entry]]:
    found: list[tuple[str, Entry]] = []
    text, at = text.strip(), 0
    while at < len(text):
        exact = _SUB_DIMS.match(text, at)
        if exact:
            found.append(("item", _sub_dims(exact[1])))
            at = exact.end()
            continue
        match = _TOKEN.match(text, at)
        if match is None:
            break
        at = match.end()
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


def _sub_dims(text: str) -> DimLayout:
    subs = []
    for size, axis, axes in _SUB_DIM.findall(text):
        several = tuple(name.strip() for name in axes.split(",")) if axes else ()
        subs.append(SubDim(int(size), (axis,) if axis else several))
    return tuple(subs)


def _error(text: str, why: str) -> AnnotationError:
    return AnnotationError(
        f"dims_mapping {text[:200]!r}: {why}; write one entry per dimension, as [-1, tp, (dp,tp)]"
    )
