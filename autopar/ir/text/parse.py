"""Parses the text form of programs. `text` describes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from autopar.base.errors import UNKNOWN, AnnotationError, near_misses
from autopar.ir.expr.expression import UNBOUNDED, Size, axes_of
from autopar.ir.expr.relation import SIGNS, Relation
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import (
    LEVELS,
    PHASES,
    ROLES,
    Example,
    Function,
    Op,
    Port,
    Program,
    Signature,
    Value,
)
from autopar.ir.text.cursor import Cursor
from autopar.ir.text.layouts import QUOTED
from autopar.ir.text.parse_op import OpParser
from autopar.ir.text.parse_parts import Header, PartsParser
from autopar.ir.text.parse_value import Declared, ValueParser
from autopar.ir.text.signature import make_port
from autopar.ir.text.words import KIND

_SIZE = re.compile(r"size\b(?=\s*\$)")
_SIZE_NAME = re.compile(r"\$[^\W\d]\w*")
_RELATION = re.compile(r"relation\b(?=\s*[$\d(-])")
_SIGN = re.compile("<=|==")
_NUMBER = re.compile(r"-?[0-9]")
_DECLARATION = re.compile(r'(?:[^\W\d]\w*|"(?:[^"\\\n]|\\.)*")\s*%')
_ALIAS = re.compile(r"alias\b(?=\s*%)")
_RETURN = re.compile(r"return\b(?!\s*\()")
_FUNC = re.compile(r"func\b(?!\s*\()")


def parse_program(text: str) -> Program:
    """Returns the program that `print_program` printed, or that somebody wrote by hand.

    Args:
        text: The program.

    Raises:
        TextError: If it can't be parsed; the message shows the line and what was expected.
    """
    return _ProgramParser(Cursor(text, "text")).program()


class _ProgramParser:
    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._header = Header()
        self._parts = PartsParser(cursor, self._header)
        self._main: _FunctionParser | None = None
        self._example: Example | None = Example()
        self._relations: list[Relation] = []

    def program(self) -> Program:
        if self._cursor.at_end():
            self._cursor.fail_expecting("a program")
        name, level = self._title()
        while self._header_line():
            pass
        explicit = self._signature() if self._cursor.keyword("signature") else None
        functions: dict[str, Function] = {}
        while not self._cursor.at_end():
            start = self._cursor.at
            function = self._function()
            if function.name in functions:
                self._cursor.fail(f"there are two functions {function.name!r}", start)
            functions[function.name] = function
        if explicit is None:
            explicit = self._main.signature(level) if self._main is not None else Signature()
        return Program(
            functions,
            explicit,
            self._header.mesh,
            level,
            name,
            self._example,
            tuple(self._relations),
        )

    def _title(self) -> tuple[str, str]:
        cursor = self._cursor
        if not cursor.keyword("program"):
            return "", "serial"
        name = ""
        if cursor.looking_at(QUOTED):
            name = cursor.string()
        start = cursor.at
        quoted = cursor.looking_at(QUOTED)
        level = cursor.word(f"a level: {', '.join(LEVELS)}")
        return name, level if quoted else cursor.one_of(level, LEVELS, "level", start)

    def _header_line(self) -> bool:
        if self._cursor.keyword("file"):
            alias = self._cursor.identifier("a short name for a file")
            self._cursor.expect("=")
            self._header.files[alias] = self._cursor.string()
            return True
        if self._cursor.keyword("mesh"):
            self._mesh()
            return True
        if self._cursor.match(_SIZE):
            self._open_size()
            return True
        if self._cursor.match(_RELATION):
            self._relations.append(self._relation())
            return True
        return self._example_line()

    def _open_size(self) -> None:
        cursor, start = self._cursor, self._cursor.at
        name = cursor.expect_match(_SIZE_NAME, "the name of an open size ($name)")[1:]
        least, most = self._range() if cursor.sign("=") else (0, UNBOUNDED)
        step = max(1, cursor.integer()) if cursor.keyword("step") else 1
        size = Size(name, least, most, step=step)
        planned = cursor.integer() if cursor.keyword("planned") else size.planned
        if name in cursor.sizes:
            cursor.fail(f"open size {size} is declared twice", start)
        cursor.sizes[name] = replace(size, planned=planned)

    def _relation(self) -> Relation:
        cursor = self._cursor
        left = cursor.expr()
        sign = cursor.expect_match(_SIGN, " or ".join(map(repr, SIGNS)))
        right = cursor.expr()
        return Relation(left, sign, right, self._parts.loc() if cursor.keyword("loc") else UNKNOWN)

    def _range(self) -> tuple[int, int]:
        cursor, start = self._cursor, self._cursor.at
        least = cursor.integer("the least that the size may be")
        cursor.expect("..")
        most = cursor.integer() if cursor.looking_at(_NUMBER) else UNBOUNDED
        if not 0 <= least <= most:
            cursor.fail(f"{least}..{most} is not a range of sizes", start)
        return least, most

    def _example_line(self) -> bool:
        cursor, example = self._cursor, self._example or Example()
        if cursor.keyword("given"):
            cursor.expect("(")
            found = replace(example, given=cursor.listed(self._parts.named_arg, ")"))
        elif cursor.keyword("defaults"):
            cursor.expect("(")
            found = replace(example, defaults=cursor.listed(self._parts.named_arg, ")"))
        elif cursor.keyword("arguments"):
            cursor.expect("(")
            found = replace(example, arguments=cursor.listed(cursor.string, ")"))
        elif cursor.keyword("example"):
            start = cursor.at
            cursor.one_of(cursor.word("unknown"), ("unknown",), "example", start)
            self._example = None
            return True
        else:
            return False
        self._example = found
        return True

    def _mesh(self) -> None:
        cursor, header, start = self._cursor, self._header, self._cursor.at
        if not cursor.looking_at(_AT):
            header.mesh = self._new_mesh(start)
        elif cursor.looking_at(_MESH_SLICE):
            header.mesh = self._parts.mesh_ref()
        else:
            cursor.expect("@")
            name = cursor.identifier("the name of a mesh")
            header.meshes[name] = self._new_mesh(start)

    def _new_mesh(self, start: int) -> ProcessMesh:
        cursor = self._cursor
        names: list[str] = []
        shape: list[int] = []
        more = True
        while more:
            names.append(cursor.identifier("a mesh axis, like dp=2"))
            cursor.expect("=")
            shape.append(cursor.integer("the size of the axis"))
            more = cursor.sign(",")
        ids = self._parts.integers() if cursor.keyword("ids") else None
        parent = self._parts.mesh_ref() if cursor.keyword("parent") else None
        try:
            mesh = ProcessMesh.of_shape(shape, names)
            if ids is None and parent is None:
                return mesh
            ids = mesh.process_ids if ids is None else ids
            if len(ids) != mesh.size:
                cursor.fail(f"a mesh of {mesh.size} processes can't have {len(ids)} ids", start)
            return ProcessMesh.of_ids(ids, shape, names, parent)
        except AnnotationError as error:
            cursor.fail(str(error), start)

    def _signature(self) -> Signature:
        inputs: list[Port] = []
        outputs: list[Port] = []
        self._cursor.expect("{")
        while not self._cursor.sign("}"):
            if self._cursor.keyword("input"):
                inputs.append(self._port())
            elif self._cursor.keyword("output"):
                outputs.append(self._port())
            else:
                self._cursor.fail_expecting("input, output or '}'")
        return Signature(tuple(inputs), tuple(outputs))

    def _port(self) -> Port:
        start = self._cursor.at
        name = self._parts.value_name()
        self._cursor.expect(":")
        declared = ValueParser(self._parts, self._cursor, True).read(name, start, "activation")
        value = declared.value
        if any(map(axes_of, value.shape)):
            self._cursor.fail("the shape of a port is the global one, without mesh axes", start)
        label = name if declared.label is None else declared.label
        box = declared.box or ()
        return Port(
            name,
            label,
            value.dtype,
            value.shape,
            value.role,
            box,
            declared.fill,
            declared.aliases,
            declared.part,
            declared.options,
        )

    def _function(self) -> Function:
        cursor, start = self._cursor, self._cursor.at
        if cursor.match(_FUNC) is None:
            # Short programs need no `func main { ... }` around their lines.
            name, close = "main", False
        else:
            name, close = cursor.named(KIND, "the name of a function"), True
            cursor.expect("{")
        parser = _FunctionParser(cursor, self._parts, name)
        function = parser.function()
        if close:
            cursor.expect("}")
        if name == "main":
            self._main = parser
        elif parser.has_ports():
            what = "`as`, `also`, `box`, `fill`, `part` or `options`"
            cursor.fail(f"only the inputs and outputs of main have {what}", start)
        return function


_AT = re.compile("@")
_MESH_SLICE = re.compile(r"@\s*[^\W\d]\w*\s*\[")


class _FunctionParser:
    """The lines of one function."""

    def __init__(self, cursor: Cursor, parts: PartsParser, name: str) -> None:
        self._cursor = cursor
        self._parts = parts
        self._name = name
        self._inputs: list[Declared] = []
        self._outputs: list[Declared] = []
        self._aliases: list[tuple[str, str]] = []
        self._values: dict[str, Value] = {}
        self._ops: list[Op] = []
        parts.uses.clear()

    def function(self) -> Function:
        while not self._cursor.match(_RETURN):
            self._line()
        outputs = self._return()
        for name, at in self._parts.uses:
            if name not in self._values:
                hint = near_misses(name, self._values)
                self._cursor.fail(f"no value %{name} in function {self._name}{hint}", at)
        return Function(
            self._name,
            tuple(declared.value.name for declared in self._inputs),
            outputs,
            self._values,
            tuple(self._ops),
            tuple(self._aliases),
        )

    def _line(self) -> None:
        cursor, start = self._cursor, self._cursor.at
        if cursor.match(_ALIAS):
            output = self._used_value()
            cursor.expect("->")
            self._aliases.append((output, self._used_value()))
        elif cursor.looking_at(_DECLARATION):
            self._declaration(start)
        elif cursor.looking_at(_VALUE):
            self._op_with_results()
        elif cursor.looking_at(_OP):
            self._op(())
        else:
            cursor.fail_expecting(f"a line of a function: {_LINES}")

    def _declaration(self, start: int) -> None:
        cursor = self._cursor
        quoted = cursor.looking_at(QUOTED)
        role = cursor.word("a role")
        if not quoted and role != "value":
            cursor.one_of(role, (*ROLES, "value"), "role", start)
        is_value = role == "value" and not quoted
        declared = self._declared("activation" if is_value else role, not is_value)
        self._define(declared, declared.value)
        if not is_value:
            self._inputs.append(declared)

    def _declared(self, role: str, is_port: bool) -> Declared:
        start = self._cursor.at
        name = self._parts.value_name()
        self._cursor.expect(":")
        return ValueParser(self._parts, self._cursor, is_port).read(name, start, role)

    def _op_with_results(self) -> None:
        results = [self._declared("activation", False)]
        while self._cursor.sign(","):
            results.append(self._declared("activation", False))
        self._cursor.expect("=", ",")
        self._op(results)

    def _op(self, results: Sequence[Declared]) -> None:
        start = self._cursor.at
        op = OpParser(self._parts, self._cursor).read(tuple(r.value.name for r in results))
        if op.phase not in PHASES:
            self._cursor.one_of(op.phase, PHASES, "phase", start)
        self._ops.append(op)
        for result in results:
            self._define(result, _completed(result, op))

    def _define(self, declared: Declared, value: Value) -> None:
        known = self._values.setdefault(value.name, value)
        if known != value:
            self._cursor.fail(f"%{value.name} is declared twice, differently", declared.at)

    def _used_value(self) -> str:
        start = self._cursor.at
        name = self._parts.value_name()
        self._parts.uses.append((name, start))
        return name

    def _return(self) -> tuple[str, ...]:
        names: list[str] = []
        more = self._cursor.looking_at(_VALUE)
        while more:
            start = self._cursor.at
            names.append(self._used_value())
            label = self._cursor.string() if self._cursor.keyword("as") else None
            box = self._parts.box() if self._cursor.keyword("box") else None
            part = self._parts.part() if self._cursor.keyword("part") else None
            placeholder = Value(names[-1], "f32", ())
            self._outputs.append(
                Declared(placeholder, False, False, label, box, None, (), part, (), start)
            )
            more = self._cursor.sign(",")
        return tuple(names)

    def has_ports(self) -> bool:
        """Returns whether an input or output says something about its port."""
        ports = (*self._inputs, *self._outputs)
        return any(port.is_port for port in ports)

    def signature(self, level: str) -> Signature:
        """Returns the signature that the inputs and outputs tell."""
        return Signature(
            tuple(self._port(declared, level) for declared in self._inputs),
            tuple(self._port(declared, level) for declared in self._outputs),
        )

    def _port(self, declared: Declared, level: str) -> Port:
        value = self._values[declared.value.name]
        port = make_port(
            value,
            level,
            declared.label,
            declared.box,
            declared.fill,
            declared.aliases,
            declared.part,
            declared.options,
        )
        if port is None:
            self._cursor.fail(
                f"the global shape of %{value.name} can't be told from a local one; write its box,"
                " `box [8[dp * 4; 4], 768]`, or a signature of the program",
                declared.at,
            )
        return port


def _completed(result: Declared, op: Op) -> Value:
    """Returns a result with what goes without saying where its op has a choice."""
    value = result.value
    is_assumed = value.dist is None and not result.undistributed
    if is_assumed and op.dist is not None and not any(map(axes_of, value.shape)):
        value = replace(value, dist=Layout.replicated(op.dist.mesh, value.shape))
    if value.dist is not None and not result.has_origin:
        value = replace(value, origin=op.origin)
    return value


_VALUE = re.compile("%")
_OP = re.compile(rf'(?:{KIND.pattern}|"(?:[^"\\\n]|\\.)*")\s*\(')
_LINES = "`input %x: f32[8]`, `%y: f32[8] = op(...)`, `alias %y -> %x` or `return %y`"
