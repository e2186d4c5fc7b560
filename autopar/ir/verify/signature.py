"""Checks what lies between functions and around them: calls, repeats, and the signature."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autopar.ir.expr.expression import IntExpr, Size, axes_of, prod, shape_str, sizes_of
from autopar.ir.expr.facts import is_at_least
from autopar.ir.expr.relation import SIGNS
from autopar.ir.program import (
    CALL,
    CALLS,
    LEVELS,
    REPEAT,
    Arg,
    Function,
    Op,
    Part,
    Port,
    Program,
    Ref,
    Value,
    called,
    callee_of,
)
from autopar.ir.text.words import value_name
from autopar.ir.used_sizes import declared_sizes
from autopar.ir.verify.function import type_of, type_str
from autopar.ir.verify.problems import Problems, one_of

Type = tuple[str, tuple[IntExpr, ...]]


def check_signature(program: Program, problems: Problems) -> None:
    """Adds what is wrong with the program's level, main function and ports."""
    if program.level not in LEVELS:
        problems.add("the program's level", one_of(program.level, LEVELS), repr(program.level))
    if program.level == "executable" and program.mesh is not None:
        problems.add("the program's mesh", "none after strip", program.mesh)
    for name, function in program.functions.items():
        if name != function.name:
            problems.add(f"the function filed as {name!r}", "its name", repr(function.name))
    _check_open_sizes(program, problems)
    _check_relations(program, problems)
    if "main" not in program.functions:
        problems.add("the program", "a function 'main'", sorted(program.functions))
        return
    signature = program.signature
    # A program that no user calls, as in tests, needs no ports.
    if signature.inputs or signature.outputs:
        main = program.main
        _check_ports(signature.inputs, main.inputs, "inputs", program, problems)
        _check_ports(signature.outputs, main.outputs, "outputs", program, problems)


def _check_open_sizes(program: Program, problems: Problems) -> None:
    sizes = declared_sizes(program)
    for size in sizes:
        if not size.name.isidentifier():
            problems.add("an open size", "an identifier as its name", repr(size.name))
        if not 0 <= size.least <= size.most:
            got = f"{size.least}..{size.most}"
            problems.add(f"open size {size}", "a range of numbers >= 0", got)
        if size.least % size.step or size.planned % size.step:
            problems.add(f"open size {size}", f"multiples of {size.step}", _range(size))
    for one, other in pairwise(sizes):
        if one.name == other.name:
            problems.add(f"open size {one}", f"one range, {_range(one)}", _range(other))


def _check_relations(program: Program, problems: Problems) -> None:
    given = {
        size.name for port in program.signature.inputs for s in port.shape for size in sizes_of(s)
    }
    for each in program.relations:
        subject = f"relation {each}"
        if each.sign not in SIGNS:
            problems.add(subject, one_of(each.sign, SIGNS), repr(each.sign))
        elif any(map(axes_of, (each.left, each.right))):
            problems.add(subject, "one of sizes, without mesh axes", each)
        elif not each.names or each.names - given:
            problems.add(subject, "one of open sizes of inputs", ", ".join(sorted(each.names)))
        elif not each.is_planned:
            problems.add(subject, "one that holds of the sizes as planned", "another one")


def _range(size: Size) -> str:
    step = f" step {size.step}" if size.step > 1 else ""
    return f"{size.least}..{size.most}{step} planned {size.planned}"


def _check_ports(
    ports: Sequence[Port], names: Sequence[str], side: str, program: Program, problems: Problems
) -> None:
    have = [port.name for port in ports]
    if have != list(names):
        expected = f"the {side} of main, {_names(names)}"
        problems.add(f"the {side} of the signature", expected, _names(have))
        return
    for port in ports:
        value = program.main.values.get(port.name)
        if value is not None:
            _check_port(port, value, program.level, problems)


def _check_port(port: Port, value: Value, level: str, problems: Problems) -> None:
    subject = f"port {value_name(port.name)}"
    if port.dtype != value.dtype:
        problems.add(f"{subject}: dtype", f"that of the value, {value.dtype}", port.dtype)
    if level == "serial" and port.shape != value.shape:
        problems.add(f"{subject}: shape", shape_str(value.shape), shape_str(port.shape))
    if any(map(axes_of, port.shape)):
        problems.add(f"{subject}: shape", "global sizes", shape_str(port.shape))
    scalar = not port.shape
    if len(port.shape) != len(value.shape) and not (scalar and value.shape == (0,)):
        problems.add(f"{subject}: shape", f"{len(value.shape)} dimensions", shape_str(port.shape))
    boxed = tuple(prod(sub.size for sub in dim) for dim in port.box)
    if port.box and boxed != port.shape and not (scalar and boxed == (1,)):
        problems.add(
            f"{subject}: box", f"one of a tensor {shape_str(port.shape)}", shape_str(boxed)
        )
    for name, option in port.options:
        if not _is_plain(option):
            problems.add(f"{subject}: option {name}", "a plain value", option)
    if port.part is not None and not _fits(port.shape, port.part):
        expected = f"one of {shape_str(port.shape)} within a tensor {list(port.part.shape)}"
        problems.add(f"{subject}: part", expected, f"one from {list(port.part.start)}")


def _is_plain(option: Arg) -> bool:
    if isinstance(option, tuple):
        return all(map(_is_plain, option))
    return option is None or isinstance(option, (bool, int, float, str))


def _fits(shape: Sequence[IntExpr], part: Part) -> bool:
    if not len(shape) == len(part.start) == len(part.shape):
        return False
    dims = zip(part.start, shape, part.shape, strict=True)
    return all(is_at_least(whole, size + start) for start, size, whole in dims)


def _names(names: Sequence[str]) -> str:
    return f"({', '.join(map(value_name, names))})"


def check_calls(program: Program, problems: Problems) -> None:
    """Adds what is wrong with calls, repeats and barriers."""
    for function in program.functions.values():
        for op in function.ops:
            if op.kind in (CALL, REPEAT, "barrier") and _is_sound(op, function):
                _CallCheck(op, function, program, problems).check()
        _check_given_away(function, program, problems)
    for name in _recursive(program):
        problems.add(f"function {name}", "no call of itself, also through others", "one")


def _check_given_away(function: Function, program: Program, problems: Problems) -> None:
    """Adds what is read though a call has written over it: an alias of its function says so."""
    kept = {*function.inputs, *function.outputs} - {into for _, into in function.aliases}
    gone: set[str] = set()
    for op in function.ops:
        for name in gone.intersection(op.operands):
            problems.at_op(
                function,
                op,
                f"operand {value_name(name)}",
                "a value that is there",
                "one that a call has written over",
            )
        callee = program.functions.get(callee_of(op)) if op.kind in CALLS else None
        # What a loop carries is another value in each iteration.
        if callee is None or op.loops or len(op.operands) != len(callee.inputs):
            continue
        given = dict(zip(callee.inputs, op.operands, strict=True))
        for _, into in callee.aliases:
            name = given[into]
            if name in kept or op.operands.count(name) > 1:
                problems.at_op(
                    function,
                    op,
                    f"operand {value_name(name)}",
                    "one that nobody else reads",
                    "one that is kept",
                )
            gone.add(name)


def _is_sound(op: Op, function: Function) -> bool:
    """Whether all names exist; if not, that has been reported for the op already."""
    return all(name in function.values for name in (*op.operands, *op.results))


class _CallCheck:
    def __init__(self, op: Op, function: Function, program: Program, problems: Problems) -> None:
        self._op = op
        self._function = function
        self._program = program
        self._problems = problems

    def check(self) -> None:
        if self._op.kind == "barrier":
            operands = self._types(self._refs("operands"))
            self._compare("results", operands, self._types(self._op.results))
        elif self._op.kind == CALL:
            self._check_call()
        else:
            self._check_repeat()

    def _add(self, subject: str, expected: object, got: object) -> None:
        self._problems.at_op(self._function, self._op, subject, expected, got)

    def _types(self, names: Sequence[str], function: Function | None = None) -> list[Type]:
        values = (function or self._function).values
        return [type_of(values[name]) for name in names if name in values]

    def _refs(self, argument: str) -> list[str]:
        arg = self._op.arg(argument, ())
        if isinstance(arg, tuple) and all(isinstance(item, Ref) for item in arg):
            return [item.name for item in arg if isinstance(item, Ref)]
        self._add(f"argument {argument}", "a list of values", arg)
        return []

    def _callee(self, argument: str) -> Function | None:
        name: Arg = self._op.arg(argument)
        if isinstance(name, str) and name in self._program.functions:
            return self._program.functions[name]
        self._add(f"argument {argument}", one_of(str(name), self._program.functions), repr(name))
        return None

    def _compare(self, what: str, expected: Sequence[Type], got: Sequence[Type]) -> None:
        if len(expected) != len(got):
            self._add(f"number of {what}", len(expected), len(got))
            return
        for at, (want, have) in enumerate(zip(expected, got, strict=True)):
            if want != have:
                self._add(f"{what}, position {at}", _type_text(want), _type_text(have))

    def _check_call(self) -> None:
        callee = self._callee("callee")
        if callee is not None:
            operands = self._types(self._refs("operands"))
            self._compare("operands", self._types(callee.inputs, callee), operands)
            results = self._types(self._op.results)
            self._compare("results", self._types(callee.outputs, callee), results)

    def _check_repeat(self) -> None:
        body, trip = self._callee("body"), self._op.arg("trip")
        if type(trip) is not int or trip < 0:
            self._add("argument trip", "a number of iterations >= 0", trip)
            return
        if body is None:
            return
        carried = self._types(self._refs("carried"))
        slices = [self._slice(name, trip) for name in self._refs("sliced")]
        invariant = self._types(self._refs("invariant"))
        inputs, outputs = self._types(body.inputs, body), self._types(body.outputs, body)
        given = [*carried, *slices, *invariant]
        self._compare("carried, sliced and invariant operands", inputs, given)
        self._compare("carried outputs of the body", carried, outputs[: len(carried)])
        stacked = [(dtype, (trip, *shape)) for dtype, shape in outputs[len(carried) :]]
        self._compare("results", [*carried, *stacked], self._types(self._op.results))

    def _slice(self, name: str, trip: int) -> Type:
        value = self._function.values[name]
        if value.shape[:1] != (trip,):
            expected = f"{trip} slices along dimension 0"
            self._add(f"sliced operand {value_name(name)}", expected, type_str(value))
        return value.dtype, value.shape[1:]


def _type_text(found: Type) -> str:
    dtype, shape = found
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _recursive(program: Program) -> list[str]:
    """Returns the functions that can reach themselves through calls."""
    calls = {name: called(function) for name, function in program.functions.items()}
    return [name for name in program.functions if _reaches(name, calls)]


def _reaches(start: str, calls: dict[str, set[str]]) -> bool:
    queue, seen = sorted(calls[start]), set[str]()
    while queue:
        name = queue.pop()
        if name == start:
            return True
        if name not in seen:
            seen.add(name)
            queue.extend(sorted(calls.get(name, ())))
    return False
