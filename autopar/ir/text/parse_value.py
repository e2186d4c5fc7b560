"""Parses the type of a value and what follows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autopar.base.errors import UNKNOWN
from autopar.ir.dims import DimLayout, SubDim
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import IntExpr, axes_of
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import ROLES, Arg, Part, Value
from autopar.ir.text.cursor import Cursor
from autopar.ir.text.layouts import QUOTED
from autopar.ir.text.parse_parts import LOC, PartsParser
from autopar.ir.text.signature import Box

_PARTIAL = re.compile(r'(?:[^\W\d]\w*|"(?:[^"\\\n]|\\.)*")@')


@dataclass
class Declared:
    """A value as it was declared, with what only the surroundings can complete.

    Attributes:
        value: The value; without origin if none was given.
        has_origin: Whether the origin was given.
        undistributed: Whether it was said to have no layout.
        label, box, fill, aliases, part, options: Of the port, as given.
        at: Where the declaration begins.
    """

    value: Value
    has_origin: bool
    undistributed: bool
    label: str | None
    box: Box | None
    fill: float | None
    aliases: tuple[str, ...]
    part: Part | None
    options: tuple[tuple[str, Arg], ...]
    at: int

    @property
    def is_port(self) -> bool:
        """Whether anything was said about a port."""
        given = (self.label, self.box, self.fill, self.part)
        return bool(self.aliases or self.options) or any(item is not None for item in given)


class ValueParser:
    """The type of a value and the clauses that follow it, in any order."""

    def __init__(self, parts: PartsParser, cursor: Cursor, is_port: bool) -> None:
        self._parts = parts
        self._cursor = cursor
        self._is_port = is_port
        self._dims: tuple[DimLayout, ...] | None = None
        self._partial: list[tuple[str, str]] = []
        self._mask: tuple[int, ...] | None = None
        self._words: dict[str, str] = {}
        self._mesh: ProcessMesh | None = None
        self._has_dist = False
        self._undistributed = False
        self._origin: tuple[Origin | None, ...] = ()
        self._box: Box | None = None
        self._fill: float | None = None
        self._aliases: list[str] = []
        self._part: Part | None = None
        self._options: tuple[tuple[str, Arg], ...] = ()
        self._loc = UNKNOWN

    def read(self, name: str, at: int, role: str) -> Declared:
        """Reads all that follows the `:` of the declaration of `name` at position `at`."""
        dtype = self._dtype()
        self._cursor.expect("[")
        sizes = self._cursor.listed(self._parts.shape_dim, "]")
        shape = tuple(size for size, _ in sizes)
        self._has_dist = any(dim is not None for _, dim in sizes)
        while self._clause():
            pass
        value = Value(
            name,
            dtype,
            shape,
            self._words.get("role", role),
            self._layout(sizes, at) if self._has_dist else None,
            self._origin[0] if self._origin else None,
            self._loc,
        )
        label = self._words.get("label")
        return Declared(
            value,
            bool(self._origin),
            self._undistributed,
            label,
            self._box,
            self._fill,
            tuple(self._aliases),
            self._part,
            self._options,
            at,
        )

    def _dtype(self) -> str:
        start = self._cursor.at
        quoted = self._cursor.looking_at(QUOTED)
        dtype = self._cursor.word("a dtype, like f32")
        return dtype if quoted else self._cursor.one_of(dtype, DTYPE_BYTES, "dtype", start)

    def _layout(self, sizes: tuple[tuple[IntExpr, DimLayout | None], ...], at: int) -> Layout:
        mesh = self._mesh or self._parts.header.mesh
        if mesh is None:
            self._cursor.fail("no mesh is declared; write `mesh dp=2, tp=4` at the top", at)
        if self._dims is not None:
            dims = self._dims
        else:
            dims = tuple(self._dim(size, dim, at) for size, dim in sizes)
        return Layout(mesh, dims, tuple(self._partial), self._mask, self._words.get("offload", ""))

    def _dim(self, size: IntExpr, dim: DimLayout | None, at: int) -> DimLayout:
        if dim is not None:
            return dim
        if axes_of(size):
            self._cursor.fail("a local shape needs its layout behind it, `of [8@dp, 4]`", at)
        return (SubDim(size),)

    def _clause(self) -> bool:
        cursor = self._cursor
        if cursor.looking_at(_PARTIAL):
            monoid, axis = self._parts.monoid_and_axis()
            self._partial.append((axis, monoid))
            self._has_dist = True
        elif cursor.sign("~"):
            self._origin = (self._parts.origin(),)
        elif cursor.match(LOC):
            self._loc = self._parts.loc()
        elif cursor.keyword("undistributed"):
            self._undistributed = True
        elif self._is_port and cursor.keyword("as"):
            self._words["label"] = cursor.string("the user's name for it, a string")
        elif self._is_port and cursor.keyword("box"):
            self._box = self._parts.box()
        elif self._is_port and cursor.keyword("fill"):
            self._fill = self._parts.number()
        elif self._is_port and cursor.keyword("also"):
            self._aliases.append(cursor.string("another name for it, a string"))
        elif self._is_port and cursor.keyword("part"):
            self._part = self._parts.part()
        elif self._is_port and cursor.keyword("options"):
            cursor.expect("(")
            self._options = cursor.listed(self._parts.named_arg, ")")
        else:
            return self._layout_clause() or self._role()
        return True

    def _layout_clause(self) -> bool:
        cursor = self._cursor
        if cursor.keyword("of"):
            cursor.expect("[")
            self._dims = cursor.listed(self._parts.dim, "]")
        elif cursor.keyword("mask"):
            self._mask = self._parts.integers()
        elif cursor.keyword("offload"):
            self._words["offload"] = cursor.word("where it is held, like cpu")
        elif cursor.keyword("on"):
            self._mesh = self._parts.mesh_ref()
        elif not cursor.keyword("replicated"):
            return False
        self._has_dist = True
        return True

    def _role(self) -> bool:
        for role in ROLES:
            # A role begins the next line too: there, a value follows it.
            if self._cursor.match(_ROLE_HERE[role]):
                self._words["role"] = role
                return True
        if self._cursor.looking_at(_QUOTED_ROLE):
            self._words["role"] = self._cursor.string()
            return True
        return False


_ROLE_HERE: Mapping[str, re.Pattern[str]] = {
    role: re.compile(rf"{role}\b(?!\s*[%(.:])") for role in ROLES
}
_QUOTED_ROLE = re.compile(r'"(?:[^"\\\n]|\\.)*"(?!\s*[%(])')
