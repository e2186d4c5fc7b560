"""Checks the structure of one function: names, uses, and what its level allows."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from autopar.ir.collectives import DECLARED, is_collective
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import Expr, IntExpr, axes_of, is_open, shape_str, substitute
from autopar.ir.expr.facts import can_exceed
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import PHASES, ROLES, Arg, DType, Function, Loops, Op, Program, Value
from autopar.ir.text.words import value_name
from autopar.ir.verify.host import check_host
from autopar.ir.verify.problems import Problems, one_of


def check_function(function: Function, program: Program, problems: Problems) -> None:
    """Adds what is wrong with a function by itself."""
    _FunctionCheck(function, program, problems).check()


class _FunctionCheck:
    def __init__(self, function: Function, program: Program, problems: Problems) -> None:
        self._function = function
        self._program = program
        self._problems = problems
        self._loops: dict[str, Loops] = {}
        self._sound_layouts: set[tuple[Layout, tuple[IntExpr, ...]]] = set()

    def check(self) -> None:
        for name, value in self._function.values.items():
            if name != value.name:
                self._add(
                    f"the value filed as {value_name(name)}", f"its name {name!r}", value.name
                )
            self._check_value(value)
        defined = self._check_inputs()
        for op in self._function.ops:
            self._check_op(op, defined)
        check_host(self._program, self._function, self._problems)
        self._check_ends(defined)

    def _add(self, subject: str, expected: object, got: object) -> None:
        self._problems.in_function(self._function, subject, expected, got)

    def _check_inputs(self) -> dict[str, None]:
        defined: dict[str, None] = {}
        for name in self._function.inputs:
            if name not in self._function.values:
                self._add(f"input {value_name(name)}", "a value of the function", "none")
            elif name in defined:
                self._add(f"input {value_name(name)}", "different inputs", "it twice")
            defined[name] = None
        return defined

    def _check_ends(self, defined: dict[str, None]) -> None:
        function = self._function
        for name in function.outputs:
            if name not in defined:
                self._add(
                    f"output {value_name(name)}", "an input or the result of an op", "neither"
                )
        for name in function.values:
            if name not in defined:
                self._add(value_name(name), "an input or the result of an op", "neither")
        replaced: set[str] = set()
        for output, source in function.aliases:
            self._check_alias(output, source)
            if source in replaced:
                self._add(f"alias to {value_name(source)}", "one new content", "two")
            replaced.add(source)

    def _check_alias(self, output: str, source: str) -> None:
        function, subject = self._function, f"alias {value_name(output)} -> {value_name(source)}"
        if output not in function.outputs:
            self._add(subject, "an output of the function first", value_name(output))
        if source not in function.inputs:
            self._add(subject, "an input of the function second", value_name(source))
        old, new = function.values.get(source), function.values.get(output)
        if old is not None and new is not None and not can_become(old, new):
            self._add(subject, f"a new content {type_str(old)}", type_str(new))

    def _check_value(self, value: Value) -> None:
        self._word(value, "dtype", value.dtype, tuple(DTYPE_BYTES))
        self._word(value, "role", value.role, ROLES)
        for size in value.shape:
            self._check_size(value, size)
        if self._program.level == "executable":
            if value.dist is not None or value.origin is not None:
                what = f"{value.dist or ''} {value.origin or ''}".strip()
                self._at(value, "distribution", "none after strip", what)
        elif value.dist is not None:
            self._check_layout(value, value.dist)

    def _at(self, value: Value, subject: str, expected: object, got: object) -> None:
        self._problems.at_value(self._function, value, subject, expected, got)

    def _word(self, value: Value, what: str, word: str, known: tuple[str, ...]) -> None:
        if word not in known:
            self._at(value, what, one_of(word, known), repr(word))

    def _check_size(self, value: Value, size: IntExpr) -> None:
        if isinstance(size, Expr):
            if self._program.level == "serial" and axes_of(size):
                self._at(value, "shape", "global sizes in a serial program", f"the size {size}")
            elif not can_exceed(size, -1):
                self._at(value, "shape", "sizes that are at least 0", f"the size {size}")
            elif unknown := self._unknown_axes(size):
                self._at(value, f"size {size}", f"axes of {self._program.mesh}", unknown)
        elif type(size) is not int or size < 0:
            self._at(value, "shape", "sizes that are integers >= 0", repr(size))

    def _unknown_axes(self, expr: Expr, loops: AbstractSet[str] = frozenset()) -> str:
        mesh = self._program.mesh
        if mesh is None:
            return ""
        known = set(mesh.dim_names) | {axis for axis, _ in mesh.fixed}
        return ", ".join(sorted(axes_of(expr) - known - loops))

    def _check_layout(self, value: Value, layout: Layout) -> None:
        # Many values share a layout and a shape, and most are right.
        key = (layout, value.shape)
        if key in self._sound_layouts:
            return
        found = list(self._layout_problems(value, layout))
        for expected, got in found:
            self._at(value, "layout", expected, got)
        if not found:
            self._sound_layouts.add(key)

    def _layout_problems(self, value: Value, layout: Layout) -> Iterator[tuple[str, str]]:
        serial = self._program.level == "serial"
        for problem in layout.problems(value.shape if serial else layout.shape):
            yield "one that fits the tensor and its mesh", problem
        if not is_within(layout.mesh, self._program.mesh):
            yield f"the program's mesh {self._program.mesh} or a part of it", str(layout.mesh)
        if layout.mask is not None and not set(layout.mask) <= set(layout.mesh.ids):
            strangers = sorted(set(layout.mask) - set(layout.mesh.ids))
            yield "a mask of processes of its mesh", str(strangers)
        if not serial and not layout.problems(layout.shape):
            yield from _local_problems(value.shape, layout)

    def _check_op(self, op: Op, defined: dict[str, None]) -> None:
        for name in op.operands:
            if name not in defined:
                what = "a later result" if name in self._function.values else "an unknown name"
                self._at_op(
                    op, f"operand {value_name(name)}", "a value that is defined before", what
                )
        names = [name for name, _ in op.args]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self._at_op(op, f"argument {name}", "one of that name", names.count(name))
        for name, arg in op.args:
            if not name.isidentifier():  # The runtime writes it into code.
                self._at_op(op, "argument", "a name as those of Python", repr(name))
            self._check_arg(op, name, arg)
        for name in op.results:
            if name not in self._function.values:
                self._at_op(op, f"result {value_name(name)}", "a value of the function", "none")
            elif name in defined:
                self._at_op(
                    op, f"result {value_name(name)}", "a new name", "one that is defined before"
                )
            defined[name] = None
        self._check_place(op)
        self._check_level(op)

    def _at_op(self, op: Op, subject: str, expected: object, got: object) -> None:
        self._problems.at_op(self._function, op, subject, expected, got)

    def _check_arg(self, op: Op, name: str, arg: Arg) -> None:
        if isinstance(arg, tuple):
            for item in arg:
                self._check_arg(op, name, item)
        elif isinstance(arg, DType) and arg.name not in DTYPE_BYTES:
            self._at_op(op, f"argument {name}", one_of(arg.name, DTYPE_BYTES), repr(arg.name))
        elif isinstance(arg, Expr):
            loops = {loop for loop, _ in op.loops}
            if self._program.level == "serial" and axes_of(arg) - loops:
                self._at_op(op, f"argument {name}", "no rank expression in a serial program", arg)
            elif unknown := self._unknown_axes(arg, loops):
                self._at_op(op, f"argument {name}", f"axes of {self._program.mesh}", unknown)

    def _check_place(self, op: Op) -> None:
        if op.phase not in PHASES:
            self._at_op(op, "phase", one_of(op.phase, PHASES), repr(op.phase))
        for what, number in (("stage", op.stage), ("microbatch", op.microbatch)):
            if number < 0:
                self._at_op(op, what, "a number >= 0", number)
        self._check_loops(op)

    def _check_loops(self, op: Op) -> None:
        """A loop runs equally often for all its ops, and is in the same loops for all of them."""
        for at, (name, trip) in enumerate(op.loops):
            own = op.loops[: at + 1]
            known = self._loops.setdefault(name, own)
            if known != own:
                self._at_op(op, f"loop {name}", f"{_loops_str(known)}, as others", _loops_str(own))
            elif trip < 1:
                self._at_op(op, f"loop {name}", "at least 1 iteration", trip)

    def _check_level(self, op: Op) -> None:
        level, mesh = self._program.level, self._program.mesh
        if level == "executable":
            if op.dist is not None or op.origin is not None:
                self._at_op(op, "distribution", "none after strip", op.origin or "a choice")
        elif op.dist is not None and not is_within(op.dist.mesh, mesh):
            self._at_op(op, "mesh", f"the program's mesh {mesh} or a part of it", op.dist.mesh)
        if not is_collective(op.kind):
            return
        if op.kind not in DECLARED:
            self._at_op(op, "op", one_of(op.kind, DECLARED), op.kind)
        if level == "serial":
            self._at_op(op, "op", "no collective in a serial program", op.kind)
        elif level == "executable" or op.arg("group") is not None:
            self._check_group(op)
        else:
            self._check_axes(op)

    def _check_group(self, op: Op) -> None:
        group = op.arg("group")
        if not isinstance(group, str) or not group:
            self._at_op(op, "argument group", "the name of a process group", repr(group))
        if op.arg("axes") is not None:
            self._at_op(op, "argument axes", "none beside a process group", op.arg("axes"))

    def _check_axes(self, op: Op) -> None:
        axes, mesh = op.arg("axes"), self._program.mesh
        names = axes if isinstance(axes, tuple) else ()
        known = mesh.dim_names if mesh is not None else ()
        if not names or len(set(names)) != len(names) or not set(names) <= set(known):
            expected = f"different axes of the mesh ({', '.join(known)})"
            self._at_op(op, "argument axes", expected, axes)


def _local_problems(shape: tuple[IntExpr, ...], layout: Layout) -> Iterator[tuple[str, str]]:
    """Yields where a local shape isn't what a rank holds under the layout.

    Compares what expressions of the rank's place are at places, since they may be written in many
    ways: on every process of a small mesh, else on the first and the last one, of which only the
    last has a smaller part. What is left there depends on open sizes, and is compared as it is
    written: a few sizes would tell nothing of the others.
    """
    expected = layout.local_shape
    if len(shape) != len(expected):
        yield f"a shape of {len(expected)} dimensions", f"one of {len(shape)}"
        return
    if shape == expected:
        return
    mesh = layout.mesh
    for position in range(mesh.size) if mesh.size <= 16 else (0, mesh.size - 1):
        coords = mesh.coordinates(position)
        used = {axis for size in shape for axis in axes_of(size)}
        if not used <= coords.keys():
            return
        want = [substitute(size, coords) for size in expected]
        have = [substitute(size, coords) for size in shape]
        if want != have:
            place = ", ".join(f"{axis}={at}" for axis, at in coords.items())
            yield f"the local shape {shape_str(want)} of {layout} at {place}", shape_str(have)
            return


def _loops_str(loops: Loops) -> str:
    return " in ".join(f"{name}={trip}" for name, trip in reversed(loops))


def is_within(mesh: ProcessMesh, root: ProcessMesh | None) -> bool:
    """Returns whether a mesh is `root` or a part of it."""
    part: ProcessMesh | None = mesh
    while part is not None:
        if part == root:
            return True
        part = part.parent
    return False


def can_become(old: Value, new: Value) -> bool:
    """Returns whether a value may be the new content of a stored one; state may change sizes."""
    if type_of(old) == type_of(new):
        return True
    if old.role != "state" or old.dtype != new.dtype or len(old.shape) != len(new.shape):
        return False
    return all(a == b or is_open(a) for a, b in zip(old.shape, new.shape, strict=True))


def type_of(value: Value) -> tuple[str, tuple[IntExpr, ...]]:
    """Returns dtype and shape."""
    return value.dtype, value.shape


def type_str(value: Value) -> str:
    """Returns dtype and shape as text."""
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
