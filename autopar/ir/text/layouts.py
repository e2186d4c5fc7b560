"""Layouts as text: whatever reads or writes them does it here.

A dimension, in programs, plans and messages:

    768                     not split
    8@dp, 8@(dp,tp)         over a mesh axis, over several, major to minor
    (12@tp)(64)             sub-dimensions, major to minor; () if there are none
    $batch@dp, ($batch * 2)@dp, ($batch@dp)($length + 1)
                            sizes that are open

A dims_mapping, in options, annotation files and plans, has an entry per dimension:

    -1, None, null, ()      not split
    tp, 'tp', "tp", 1       over a mesh axis, by name or number
    (dp,tp), [dp,tp]        over several, major to minor
    (12@tp)(64)             exactly so: 12 heads of 64, of which the heads are split over tp
    ($batch@dp)($length)    the same of open sizes, by their names

What is pending is `sum@tp`. A mark (`ir/mark.py`), which holds a mesh and places too, is written as
an argument of an op, and so is the dims_mapping in it: `["dp", -1, ["dp", "tp"]]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from autopar.base.errors import AnnotationError
from autopar.ir.dims import DimLayout, SubDim, dim_axes, dim_str
from autopar.ir.expr.expression import IntExpr, Size, axes_of
from autopar.ir.layout import MONOIDS
from autopar.ir.text.cursor import Cursor, TextError
from autopar.ir.text.words import word

Entry = int | str | None | tuple[int | str, ...] | DimLayout
"""One entry of a dims_mapping: -1 or None (not split), an axis, several axes, or sub-dimensions."""

CLOSING = {"(": ")", "[": "]"}
"""What several axes stand in."""

NOT_SPLIT = ("None", "null")
"""Other words for -1."""

QUOTED = re.compile('"')
_SIZE = re.compile(r"-?[0-9]|[$(]|(?:min|max)\s*\(")
_SUB_DIMS = re.compile(r"\(\s*(?:[0-9]+\s*[@)]|\))")
_SEVERAL_SUB_DIMS = re.compile(r"\(\s*[0-9]+\s*(?:@\s*(?:\w+|\([^()]*\))\s*)?\)\s*\(")
_OPEN_SUB_DIM = re.compile(r"\(\s*(?:[$(0-9]|(?:min|max)\s*\()")
_OPEN_SIZE = re.compile(r"\$([^\W\d]\w*)")
_AXIS_NUMBER = re.compile(r"-?[0-9]{1,18}\b")
_AXIS_NAME = re.compile(r"[^\W\d]\w*|'[^']*'|\"[^\"]*\"")


class LayoutParser:
    """Reads parts of layouts. Any axis will do; who knows the meshes overrides `axis`."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def axis(self) -> str:
        """Reads the name of a mesh axis."""
        return self._cursor.identifier("a mesh axis")

    def dim(self) -> DimLayout:
        """Reads one dimension of a layout, or a factor: `8@dp`, `(12@tp)(64)`."""
        cursor = self._cursor
        if not self.at_sub_dims():
            return (self.sub_dim(self.size()),)
        subs: list[SubDim] = []
        while cursor.sign("("):
            if cursor.sign(")"):
                return ()
            subs.append(self.sub_dim(self.size()))
            cursor.expect(")")
        return tuple(subs)

    def at_sub_dims(self) -> bool:
        """Returns whether a dimension begins here that is written in sub-dimensions."""
        return self._cursor.looking_at(_SUB_DIMS) or self._cursor.opens_group("@", "(")

    def size(self) -> IntExpr:
        """Reads a global size: a number, or an expression of open sizes."""
        cursor, start = self._cursor, self._cursor.at
        if not cursor.looking_at(_SIZE):
            cursor.fail_expecting("a size")
        size = cursor.expr()
        if axes := axes_of(size):
            cursor.fail(f"a global size doesn't depend on mesh axes, as {min(axes)}", start)
        return size

    def sub_dim(self, size: IntExpr) -> SubDim:
        """Reads what follows a size: `@dp`, `@(dp,tp)`, or nothing."""
        if not self._cursor.sign("@"):
            return SubDim(size)
        if self._cursor.sign("("):
            return SubDim(size, self._cursor.listed(self.axis, ")"))
        return SubDim(size, (self.axis(),))

    def monoid_and_axis(self) -> tuple[str, str]:
        """Reads `sum@tp`."""
        start = self._cursor.at
        quoted = self._cursor.looking_at(QUOTED)
        monoid = self._cursor.word("a reduction")
        if not quoted:
            self._cursor.one_of(monoid, MONOIDS, "reduction", start)
        self._cursor.expect("@")
        return monoid, self.axis()

    def dims_mapping(self) -> tuple[Entry, ...]:
        """Reads `[-1, tp, (dp,tp)]`."""
        if not self._cursor.sign("["):
            self._cursor.fail("it must be a list in brackets")
        return self._cursor.listed(self._entry, "]")

    def _entry(self) -> Entry:
        cursor = self._cursor
        is_open = cursor.looking_at(_OPEN_SUB_DIM) and cursor.opens_group("@", "(")
        if is_open or cursor.looking_at(_SEVERAL_SUB_DIMS):
            return self.dim()
        for opened, closing in CLOSING.items():
            if self._cursor.sign(opened):
                return self._cursor.listed(self._one_of_several, closing)
        return self._axis_or_none()

    def _one_of_several(self) -> int | str:
        start = self._cursor.at
        axis = self._axis_or_none()
        if axis is None:
            self._cursor.fail("what is no axis can't be one of several axes", start)
        return axis

    def _axis_or_none(self) -> int | str | None:
        if (number := self._cursor.match(_AXIS_NUMBER)) is not None:
            return int(number)
        name = self._cursor.expect_match(_AXIS_NAME, "-1, a mesh axis, or several in parentheses")
        name = name[1:-1] if name[0] in "'\"" else name
        return None if name in NOT_SPLIT else name


@lru_cache(maxsize=1024)
def parse_dims_mapping(text: str) -> tuple[Entry, ...]:
    """Returns the entries of a dims_mapping.

        >>> parse_dims_mapping("[-1, tp, (dp,1), None]")
        (-1, 'tp', ('dp', 1), None)

    Args:
        text: The dims_mapping. Of an open size it has the name alone (see `dim_of_entry`).

    Raises:
        AnnotationError: If the text is not a bracketed list of such entries.
    """
    cursor = Cursor(text, "dims_mapping")
    cursor.sizes.update((name, Size(name)) for name in _OPEN_SIZE.findall(text))
    try:
        entries = LayoutParser(cursor).dims_mapping()
        if not cursor.at_end():
            cursor.fail_expecting("nothing behind the list")
    except TextError as error:
        raise AnnotationError(
            f"dims_mapping {text.strip()[:200]!r}: {error.what}; write one entry per dimension, as"
            " [-1, tp, (dp,tp)]"
        ) from error
    return entries


def dim_text(dim: DimLayout) -> str:
    """Returns one dimension of a layout, or a factor: `8@dp`, `(12@tp)(64)`, `()`."""
    return dim_str(dim) or "()"


def dims_text(dims: Iterable[DimLayout]) -> str:
    """Returns the dimensions of a layout without brackets: `8@dp, 768`."""
    return ", ".join(map(dim_text, dims))


def pending_text(axis: str, monoid: str) -> str:
    """Returns `sum@tp`."""
    return f"{word(monoid)}@{axis}"


def entry_text(dim: DimLayout) -> str:
    """Returns an entry of a dims_mapping: `-1`, `tp`, `[dp, tp]`, `(12@tp)(64)`."""
    axes = dim_axes(dim)
    if not axes:
        return "-1"
    if len(dim) > 1:
        return dim_str(dim)
    return axes[0] if len(axes) == 1 else f"[{', '.join(axes)}]"


def dims_mapping_text(dims: Iterable[DimLayout]) -> str:
    """Returns a dims_mapping: `[-1, tp]`."""
    return f"[{', '.join(map(entry_text, dims))}]"
