"""Parses the parts of a line of the text form: the inverse of `text_parts`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from autopar.base.errors import AnnotationError, Loc, near_misses
from autopar.ir.dims import DimLayout
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import IntExpr, axes_of, prod
from autopar.ir.fixed import Index
from autopar.ir.layout import Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Arg, BoxDim, DType, OpDist, Part, Pending, Ref
from autopar.ir.text.cursor import Cursor
from autopar.ir.text.layouts import QUOTED, LayoutParser
from autopar.ir.text.print_parts import CONSTANTS, RESERVED
from autopar.ir.text.signature import Box
from autopar.ir.text.words import IDENTIFIER, VALUE_NAME

LOC = re.compile(r"loc\b(?=\s*\()")

_BOX_SUB_DIMS = re.compile(r"\(\s*(?:[0-9]+\s*[\[)]|\))")
_FLOAT = re.compile(r"-?[0-9]+(?:\.[0-9]*(?:e[+-]?[0-9]+)?|e[+-]?[0-9]+)|-?inf\b|nan\b")
_FACTOR = re.compile(r'(?:[^\W\d]\w*|"(?:[^"\\\n]|\\.)*")\s*:')


@dataclass
class Header:
    """What the lines of a program refer to."""

    mesh: ProcessMesh | None = None
    meshes: dict[str, ProcessMesh] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


class PartsParser(LayoutParser):
    """Reads types, arguments, choices, origins and locations."""

    def __init__(self, cursor: Cursor, header: Header) -> None:
        self.uses: list[tuple[str, int]] = []
        """Names of the values that arguments refer to, and where they stand."""
        super().__init__(cursor)
        self.header = header

    def mesh_ref(self) -> ProcessMesh:
        """Reads `mesh`, `@m1`, or a part, `mesh[pp=0]`, `mesh[tp=0+2]`."""
        cursor, start = self._cursor, self._cursor.at
        if cursor.sign("@"):
            name = cursor.identifier("the name of a mesh")
            found = self.header.meshes.get(name)
            if found is None:
                hint = near_misses(name, self.header.meshes)
                cursor.fail(f"no mesh @{name} is declared{hint}", start)
        else:
            if not cursor.keyword("mesh"):
                cursor.fail_expecting("'mesh' or '@' and the name of a mesh")
            found = self._default_mesh(start)
        while cursor.sign("["):
            axis = cursor.identifier("a mesh axis")
            cursor.expect("=")
            where = self._index()
            cursor.expect("]")
            try:
                found = found.part(axis, where)
            except AnnotationError as error:
                cursor.fail(str(error), start)
        return found

    def _index(self) -> Index:
        """Reads where along an axis a part is: `0`, `0+2` of a box, or `0..2` of a run."""
        cursor, start = self._cursor, self._cursor.at
        indices = [cursor.integer()]
        if cursor.sign(".."):
            last = cursor.integer()
            if last <= indices[0]:
                cursor.fail(f"{indices[0]}..{last} is no run of indices", start)
            return range(indices[0], last + 1)
        while cursor.sign("+"):
            indices.append(cursor.integer())
        return tuple(indices)

    def _default_mesh(self, start: int) -> ProcessMesh:
        mesh = self.header.mesh
        if mesh is None:
            self._cursor.fail("no mesh is declared; write `mesh dp=2, tp=4` at the top", start)
        return mesh

    def value_name(self, expected: str = "a value (%name)") -> str:
        """Reads `%x`."""
        if not self._cursor.sign("%"):
            self._cursor.fail_expecting(expected)
        return self._cursor.named(VALUE_NAME, "the name of a value")

    def shape_dim(self) -> tuple[IntExpr, DimLayout | None]:
        """Reads one dimension of a type: its size, and its layout if it tells one."""
        cursor = self._cursor
        if self.at_sub_dims():
            dim = self.dim()
            return prod(sub.size for sub in dim), dim
        size = cursor.expr()
        if not axes_of(size):
            sub = self.sub_dim(size)
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
        for root in (self.header.mesh, *self.header.meshes.values()):
            mesh = root
            while mesh is not None:
                yield from mesh.dim_names
                mesh = mesh.parent

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
            file = self.header.files[cursor.one_of(alias, self.header.files, "file", start)]
        else:
            file = cursor.string("a file")
        line, name = 0, ""
        if cursor.sign(","):
            if not cursor.looking_at(QUOTED):
                line = cursor.integer("a line number or a name")
            if line == 0 or cursor.sign(","):
                name = cursor.string("a name")
        cursor.expect(")")
        return Loc(file, line, name)

    def named_arg(self) -> tuple[str, Arg]:
        """Reads `name=argument`."""
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
        if cursor.looking_at(QUOTED):
            return cursor.string()
        if (number := cursor.match(_FLOAT)) is not None:
            return _float(number)
        return self._word_arg() if cursor.looking_at(_RESERVED_WORD) else cursor.expr()

    def _word_arg(self) -> Arg:
        word = self._cursor.identifier("an argument")
        if word in CONSTANTS:
            return CONSTANTS[word]
        if word in DTYPE_BYTES:
            return DType(word)
        self._cursor.expect("(")
        if word == "complex":
            real = self.number()
            self._cursor.expect(",")
            arg: Arg = complex(real, self.number())
        else:
            arg = DType(self._cursor.string())
        self._cursor.expect(")")
        return arg

    def number(self) -> float:
        """Reads a number that isn't an integer."""
        if (number := self._cursor.match(_FLOAT)) is None:
            self._cursor.fail_expecting("a number with a decimal point")
        return _float(number)

    def op_dist(self) -> OpDist:
        """Reads what follows the `{` of a choice."""
        cursor, start = self._cursor, self._cursor.at
        factors: list[tuple[str, DimLayout]] = []
        pending: list[Pending] = []
        body, mesh = "", self.header.mesh
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

    def part(self) -> Part:
        """Reads what follows `part`: `"w" [16, 768] from [8, 0]`."""
        name = self._cursor.string("the name of the tensor that it is a part of")
        shape = self._integers()
        if not self._cursor.keyword("from"):
            self._cursor.fail_expecting("from [...], the index where the part begins")
        return Part(name, shape, self._integers())

    def _integers(self) -> tuple[int, ...]:
        self._cursor.expect("[")
        return self._cursor.listed(self._cursor.integer, "]")

    def box(self) -> Box:
        """Reads what follows `box`."""
        self._cursor.expect("[")
        return self._cursor.listed(self._box_dim, "]")

    def _box_dim(self) -> tuple[BoxDim, ...]:
        cursor = self._cursor
        if not cursor.looking_at(_BOX_SUB_DIMS) and not cursor.opens_group("[", "("):
            return (self._box_sub(),)
        subs: list[BoxDim] = []
        while cursor.sign("("):
            if cursor.sign(")"):
                return ()
            subs.append(self._box_sub())
            cursor.expect(")")
        return tuple(subs)

    def _box_sub(self) -> BoxDim:
        size = self.size()
        if not self._cursor.sign("["):
            return BoxDim(size, 0, size)
        start = self._cursor.expr()
        self._cursor.expect(";")
        length = self._cursor.expr()
        self._cursor.expect("]")
        return BoxDim(size, start, length)


_VALUE = re.compile("%")
_RESERVED_WORD = re.compile(
    rf"(?:{'|'.join(sorted(RESERVED - {'complex', 'dtype'}))})\b|(?:complex|dtype)\s*\("
)


def _float(number: str) -> float:
    # One NaN object for all: tuples compare by identity first.
    return math.nan if number == "nan" else float(number)


def parse_arg(text: str, source: str) -> Arg:
    """Returns the argument of an op that `arg_str` wrote.

    Args:
        text: The text.
        source: What it is, in messages.

    Raises:
        TextError: If it is something else.
    """
    cursor = Cursor(text, source)
    arg = PartsParser(cursor, Header()).arg()
    if not cursor.at_end():
        cursor.fail_expecting("nothing behind the argument")
    return arg
