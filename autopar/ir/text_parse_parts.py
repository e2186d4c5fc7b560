"""Parses the parts of a line of the text form: the inverse of `text_parts`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autopar.ir.errors import UNKNOWN, AnnotationError, Loc, near_misses
from autopar.ir.expr import Expr, IntExpr
from autopar.ir.layout import MONOIDS, DimLayout, Layout, Origin, SubDim
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import (
    DTYPE_BYTES,
    ROLES,
    Arg,
    BoxDim,
    DType,
    Op,
    OpDist,
    Pending,
    Ref,
    Value,
)
from autopar.ir.text_cursor import Cursor
from autopar.ir.text_parts import CONSTANTS, RESERVED
from autopar.ir.text_signature import Box
from autopar.ir.text_words import IDENTIFIER, KIND, VALUE_NAME

_SUB_DIMS = re.compile(r"\(\s*(?:[0-9]+\s*[@)]|\))")
_BOX_SUB_DIMS = re.compile(r"\(\s*(?:[0-9]+\s*[\[)]|\))")
_FLOAT = re.compile(r"-?[0-9]+(?:\.[0-9]*(?:e[+-]?[0-9]+)?|e[+-]?[0-9]+)|-?inf\b|nan\b")
_PARTIAL = re.compile(r'(?:[^\W\d]\w*|"(?:[^"\\\n]|\\.)*")@')
_STRING_OR_NAME = re.compile(r'"|[^\W\d]')
_FACTOR = re.compile(r'(?:[^\W\d]\w*|"(?:[^"\\\n]|\\.)*")\s*:')


@dataclass
class Header:
    """What the lines of a program refer to."""

    mesh: ProcessMesh | None = None
    meshes: dict[str, ProcessMesh] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


@dataclass
class Declared:
    """A value as it was declared, with what only the surroundings can complete.

    Attributes:
        value: The value; without origin if none was given.
        has_origin: Whether the origin was given.
        undistributed: Whether it was said to have no layout.
        label, box: Of the port, as given.
        at: Where the declaration begins.
    """

    value: Value
    has_origin: bool
    undistributed: bool
    label: str | None
    box: Box | None
    at: int


class PartsParser:
    """Reads types, arguments, choices, origins and locations."""

    def __init__(self, cursor: Cursor, header: Header) -> None:
        self.uses: list[tuple[str, int]] = []
        """Names of the values that arguments refer to, and where they stand."""
        self._cursor = cursor
        self._header = header

    def mesh_ref(self) -> ProcessMesh:
        """Reads `mesh`, `@m1`, or a slice, `mesh[pp=0]`."""
        cursor, start = self._cursor, self._cursor.at
        if cursor.sign("@"):
            name = cursor.identifier("the name of a mesh")
            found = self._header.meshes.get(name)
            if found is None:
                hint = near_misses(name, self._header.meshes)
                cursor.fail(f"no mesh @{name} is declared{hint}", start)
        else:
            if not cursor.keyword("mesh"):
                cursor.fail_expecting("'mesh' or '@' and the name of a mesh")
            found = self._default_mesh(start)
        while cursor.sign("["):
            axis = cursor.identifier("a mesh axis")
            cursor.expect("=")
            index = cursor.integer()
            cursor.expect("]")
            try:
                found = found[axis, index]
            except AnnotationError as error:
                cursor.fail(str(error), start)
        return found

    def _default_mesh(self, start: int) -> ProcessMesh:
        mesh = self._header.mesh
        if mesh is None:
            self._cursor.fail("no mesh is declared; write `mesh dp=2, tp=4` at the top", start)
        return mesh

    def declared(self, name: str, at: int, role: str, is_port: bool) -> Declared:
        """Reads a type and what follows it, for a value of this name."""
        return _DeclarationParser(self, self._cursor, self._header, is_port).read(name, at, role)

    def value_name(self, expected: str = "a value (%name)") -> str:
        """Reads `%x`."""
        if not self._cursor.sign("%"):
            self._cursor.fail_expecting(expected)
        return self._cursor.named(VALUE_NAME, "the name of a value")

    def dim(self) -> DimLayout:
        """Reads one dimension of a layout, or a factor."""
        cursor = self._cursor
        if not cursor.looking_at(_SUB_DIMS):
            return (self._sub_dim(cursor.integer("a size")),)
        subs: list[SubDim] = []
        while cursor.sign("("):
            if cursor.sign(")"):
                return ()
            subs.append(self._sub_dim(cursor.integer("a size")))
            cursor.expect(")")
        return tuple(subs)

    def _sub_dim(self, size: int) -> SubDim:
        if not self._cursor.sign("@"):
            return SubDim(size)
        if self._cursor.sign("("):
            return SubDim(size, self._cursor.listed(self.axis, ")"))
        return SubDim(size, (self.axis(),))

    def shape_dim(self) -> tuple[IntExpr, DimLayout | None]:
        """Reads one dimension of a type: its size, and its layout if it tells one."""
        cursor = self._cursor
        if cursor.looking_at(_SUB_DIMS):
            dim = self.dim()
            return math.prod(sub.size for sub in dim), dim
        size = cursor.expr()
        if isinstance(size, int):
            sub = self._sub_dim(size)
            return size, (sub,) if sub.axes else None
        return size, None

    def axis(self) -> str:
        """Reads the name of an axis of a mesh that is known."""
        start = self._cursor.at
        name = self._cursor.identifier("a mesh axis")
        known = tuple(self._known_axes())
        if not known:
            self._default_mesh(start)
        return self._cursor.one_of(name, known, "mesh axis", start)

    def _known_axes(self) -> Iterator[str]:
        for root in (self._header.mesh, *self._header.meshes.values()):
            mesh = root
            while mesh is not None:
                yield from mesh.dim_names
                mesh = mesh.parent

    def monoid_and_axis(self) -> tuple[str, str]:
        """Reads `sum@tp`."""
        start = self._cursor.at
        quoted = self._cursor.looking_at(_QUOTED)
        monoid = self._cursor.word("a reduction")
        if not quoted:
            self._cursor.one_of(monoid, MONOIDS, "reduction", start)
        self._cursor.expect("@")
        return monoid, self.axis()

    def integers(self) -> tuple[int, ...]:
        """Reads `[0..3, 8]`."""
        self._cursor.expect("[")
        return tuple(n for run in self._cursor.listed(self._run, "]") for n in run)

    def _run(self) -> range:
        start = self._cursor.at
        first = self._cursor.integer()
        last = self._cursor.integer() if self._cursor.sign("..") else first
        if last < first or last - first > 1 << 24:
            self._cursor.fail(f"{first}..{last} is not a range of process ids", start)
        return range(first, last + 1)

    def origin(self) -> Origin | None:
        """Reads what follows the `~` of an origin."""
        if self._cursor.keyword("none"):
            return None
        kind = self._cursor.word("the kind of an origin")
        if not self._cursor.sign("("):
            return Origin(kind)
        detail = self._cursor.string()
        self._cursor.expect(")")
        return Origin(kind, detail)

    def loc(self) -> Loc:
        """Reads what follows `loc`."""
        cursor = self._cursor
        cursor.expect("(")
        start = cursor.at
        if cursor.looking_at(IDENTIFIER):
            alias = cursor.identifier("a file")
            file = self._header.files[cursor.one_of(alias, self._header.files, "file", start)]
        else:
            file = cursor.string("a file")
        line, name = 0, ""
        if cursor.sign(","):
            if not cursor.looking_at(_QUOTED):
                line = cursor.integer("a line number or a name")
            if line == 0 or cursor.sign(","):
                name = cursor.string("a name")
        cursor.expect(")")
        return Loc(file, line, name)

    def op(self, results: tuple[str, ...]) -> Op:
        """Reads an op behind the `=`."""
        kind = self._cursor.named(KIND, "an op, like aten.mm.default")
        self._cursor.expect("(")
        args = self._cursor.listed(self._named_arg, ")")
        op = _OpClauses(self, self._cursor)
        op.read()
        return Op(
            kind,
            args,
            results,
            op.dist,
            op.origin,
            op.loc,
            op.numbers.get("stage", 0),
            op.numbers.get("microbatch", 0),
            op.phase,
            op.plan,
        )

    def _named_arg(self) -> tuple[str, Arg]:
        name = self._cursor.word("the name of an argument")
        self._cursor.expect("=")
        return name, self.arg()

    def arg(self) -> Arg:
        """Reads an argument."""
        cursor = self._cursor
        if cursor.sign("["):
            return cursor.listed(self.arg, "]")
        if cursor.looking_at(_VALUE):
            start = cursor.at
            self.uses.append((self.value_name(), start))
            return Ref(self.uses[-1][0])
        if cursor.looking_at(_QUOTED):
            return cursor.string()
        if (number := cursor.match(_FLOAT)) is not None:
            # One NaN object for all: tuples compare by identity first.
            return math.nan if number == "nan" else float(number)
        return self._word_arg() if cursor.looking_at(_RESERVED_WORD) else cursor.expr()

    def _word_arg(self) -> Arg:
        word = self._cursor.identifier("an argument")
        if word in CONSTANTS:
            return CONSTANTS[word]
        if word in DTYPE_BYTES:
            return DType(word)
        self._cursor.expect("(")
        name = self._cursor.string()
        self._cursor.expect(")")
        return DType(name)

    def op_dist(self) -> OpDist:
        """Reads what follows the `{` of a choice."""
        cursor, start = self._cursor, self._cursor.at
        factors: list[tuple[str, DimLayout]] = []
        pending: list[Pending] = []
        body, mesh = "", self._header.mesh
        while not cursor.sign("}"):
            if cursor.looking_at(_FACTOR):
                factors.extend(self._factors())
            elif cursor.keyword("body"):
                body = cursor.word("the name of a body")
            elif cursor.keyword("pending"):
                pending.append(self._pending())
            elif cursor.keyword("on"):
                mesh = self.mesh_ref()
            else:
                cursor.fail_expecting("a factor (name: layout), body, pending or on")
            if not cursor.sign(";"):
                cursor.expect("}", ",", ";")
                break
        mesh = self._default_mesh(start) if mesh is None else mesh
        return OpDist(mesh, tuple(factors), body, tuple(pending))

    def _factors(self) -> Iterator[tuple[str, DimLayout]]:
        more = True
        while more:
            name = self._cursor.word("the name of a factor")
            self._cursor.expect(":")
            yield name, self.dim()
            more = self._cursor.sign(",")

    def _pending(self) -> Pending:
        monoid, axis = self.monoid_and_axis()
        self._cursor.expect("(")
        return Pending(axis, monoid, self._cursor.listed(self._cursor.integer, ")"))

    def box(self) -> Box:
        """Reads what follows `box`."""
        self._cursor.expect("[")
        return self._cursor.listed(self._box_dim, "]")

    def _box_dim(self) -> tuple[BoxDim, ...]:
        cursor = self._cursor
        if not cursor.looking_at(_BOX_SUB_DIMS):
            return (self._box_sub(),)
        subs: list[BoxDim] = []
        while cursor.sign("("):
            if cursor.sign(")"):
                return ()
            subs.append(self._box_sub())
            cursor.expect(")")
        return tuple(subs)

    def _box_sub(self) -> BoxDim:
        size = self._cursor.integer("a size")
        if not self._cursor.sign("["):
            return BoxDim(size, 0, size)
        start = self._cursor.expr()
        self._cursor.expect(";")
        length = self._cursor.expr()
        self._cursor.expect("]")
        return BoxDim(size, start, length)


_QUOTED = re.compile('"')
_VALUE = re.compile("%")
_RESERVED_WORD = re.compile(rf"(?:{'|'.join(sorted(RESERVED - {'dtype'}))})\b|dtype\s*\(")


class _OpClauses:
    """What follows the arguments of an op, in any order."""

    def __init__(self, parts: PartsParser, cursor: Cursor) -> None:
        self._parts = parts
        self._cursor = cursor
        self.dist: OpDist | None = None
        self.origin: Origin | None = None
        self.loc = UNKNOWN
        self.phase = "forward"
        self.plan: tuple[tuple[str, str], ...] = ()
        self.numbers: dict[str, int] = {}

    def read(self) -> None:
        while self._clause():
            pass

    def _clause(self) -> bool:
        cursor = self._cursor
        if cursor.sign("{"):
            self.dist = self._parts.op_dist()
        elif cursor.sign("~"):
            self.origin = self._parts.origin()
        elif cursor.match(_STAGE):
            self.numbers["stage"] = cursor.integer()
        elif cursor.match(_MICROBATCH):
            self.numbers["microbatch"] = cursor.integer()
        elif cursor.match(_PHASE):
            self.phase = cursor.word("a phase")
        elif cursor.match(_PLAN):
            self.plan = cursor.listed(self._plan_entry, ")")
        elif cursor.match(_LOC):
            self.loc = self._parts.loc()
        else:
            return False
        return True

    def _plan_entry(self) -> tuple[str, str]:
        name = self._cursor.word("the name of a plan entry")
        self._cursor.expect("=")
        return name, self._cursor.word("a word or string")


_STAGE = re.compile(r"stage\s*=")
_MICROBATCH = re.compile(r"microbatch\s*=")
_PHASE = re.compile(r"phase\s*=")
_PLAN = re.compile(r"plan\s*\(")
_LOC = re.compile(r"loc\b(?=\s*\()")


class _DeclarationParser:
    """The type of a value and the clauses that follow it, in any order."""

    def __init__(self, parts: PartsParser, cursor: Cursor, header: Header, is_port: bool) -> None:
        self._parts = parts
        self._cursor = cursor
        self._header = header
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
        self._loc = UNKNOWN

    def read(self, name: str, at: int, role: str) -> Declared:
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
        return Declared(value, bool(self._origin), self._undistributed, label, self._box, at)

    def _dtype(self) -> str:
        start = self._cursor.at
        quoted = self._cursor.looking_at(_QUOTED)
        dtype = self._cursor.word("a dtype, like f32")
        return dtype if quoted else self._cursor.one_of(dtype, DTYPE_BYTES, "dtype", start)

    def _layout(self, sizes: tuple[tuple[IntExpr, DimLayout | None], ...], at: int) -> Layout:
        mesh = self._mesh or self._header.mesh
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
        if isinstance(size, Expr):
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
        elif cursor.match(_LOC):
            self._loc = self._parts.loc()
        elif cursor.keyword("undistributed"):
            self._undistributed = True
        elif self._is_port and cursor.keyword("as"):
            self._words["label"] = cursor.string("the user's name for it, a string")
        elif self._is_port and cursor.keyword("box"):
            self._box = self._parts.box()
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
