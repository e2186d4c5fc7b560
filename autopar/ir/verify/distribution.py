"""Checks the layouts and choices of a completed program against the rules of its ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from autopar.ir.dims import dim_axes, dim_size
from autopar.ir.layout import MONOIDS, ORIGIN_KINDS, Layout
from autopar.ir.ops import rule_of
from autopar.ir.program import CALL, REPEAT, STORED_ROLES, Function, Op, OpDist, Program, Value
from autopar.ir.rules.alike import call_key
from autopar.ir.rules.distribution import consumed, produced, replicated
from autopar.ir.rules.rule import SAME, Linear, Rule
from autopar.ir.text.words import value_name
from autopar.ir.verify.problems import Problems, one_of

PINNED = ("annotated", "inherited", "preset")
CONTROL = (CALL, REPEAT, "barrier")

Finding = tuple[str, object, object]
"""Subject, what was expected, what was got."""


def check_distribution(program: Program, problems: Problems) -> None:
    """Adds what is wrong with layouts and choices. The structure must be right already."""
    if program.level != "serial" or program.mesh is None:
        problems.add("the program", "a serial program with a mesh", f"level {program.level}")
        return
    for function in program.functions.values():
        if function.name == "main" or _is_completed(function):
            _FunctionCheck(function, function.name == "main", problems).check()


def check_pins(program: Program, pinned: Program, problems: Problems) -> None:
    """Adds the values whose annotated layout isn't that of the program before completion."""
    for name, before in pinned.main.values.items():
        kind = None if before.origin is None else before.origin.kind
        if before.dist is None or kind not in ("annotated", "inherited"):
            continue
        after = program.main.values.get(name)
        if after is None:
            problems.in_function(program.main, f"{value_name(name)}", "the pinned value", "none")
        elif after.dist is None or not _keeps_pin(before, before.dist, after.dist):
            expected = f"the layout that the user pinned, {before.dist}"
            problems.at_value(program.main, after, "layout", expected, after.dist)


def _keeps_pin(value: Value, pin: Layout, layout: Layout) -> bool:
    """Whether a layout is what was pinned; a parameter's axes may move within a dimension."""
    if value.role in STORED_ROLES and layout.dims_mapping == pin.dims_mapping:
        return layout.shape == pin.shape and layout.partial == pin.partial
    return layout.normalized() == pin.normalized()


def _is_completed(function: Function) -> bool:
    return any(op.dist is not None for op in function.ops)


class _FunctionCheck:
    def __init__(self, function: Function, is_main: bool, problems: Problems) -> None:
        self._function = function
        self._is_main = is_main
        self._problems = problems
        # Repeated layers have equal ops; what is right about one is right about all.
        self._sound: dict[object, tuple[Layout, ...]] = {}

    def check(self) -> None:
        inputs, outputs = set(self._function.inputs), set(self._function.outputs)
        complete = outputs | set(_read_elsewhere(self._function))
        for value in self._function.values.values():
            for finding in _value_problems(value):
                self._problems.at_value(self._function, value, *finding)
            is_port = self._is_main and (value.name in inputs or value.name in outputs)
            if is_port and value.dist is not None and value.dist.partial:
                expected = "an input or output of main without pending reductions"
                self._problems.at_value(self._function, value, "layout", expected, value.dist)
        for op in self._function.ops:
            self._check_op(op, complete)

    def _add(self, op: Op, finding: Finding) -> None:
        self._problems.at_op(self._function, op, *finding)

    def _check_op(self, op: Op, complete: set[str]) -> None:
        if op.origin is None or op.origin.kind not in ORIGIN_KINDS:
            self._add(op, ("origin", f"one of {', '.join(ORIGIN_KINDS)}", op.origin))
        if op.dist is None:
            self._add(op, ("distribution", "a choice for every op", "none"))
            return
        if op.kind in CONTROL:
            return
        left = self._left_layouts(op, op.dist)
        for name, layout in zip(op.results, left, strict=False):
            self._check_stored(op, self._function.values[name], layout, complete)

    def _left_layouts(self, op: Op, dist: OpDist) -> tuple[Layout, ...]:
        """Returns the layouts in which the op leaves its results; none if it has a problem."""
        key = call_key(op, dist, self._function.values)
        if key in self._sound:
            return self._sound[key]
        rule = rule_of(op, self._function.values)
        found = list(_choice_problems(rule, dist, op) if rule else _fallback_problems(dist, op))
        left: tuple[Layout, ...] = ()
        if not found and rule is not None:
            left = tuple(produced(rule, dist, at) for at in range(len(op.results)))
            found.extend(_derived_problems(rule, dist, op, self._function, left))
        elif not found:
            shapes = [self._function.values[name].global_shape for name in op.results]
            left = tuple(replicated(dist.mesh, shape) for shape in shapes)
        for finding in found:
            self._add(op, finding)
        if found:
            return ()
        self._sound[key] = left
        return left

    def _check_stored(self, op: Op, value: Value, left: Layout, complete: set[str]) -> None:
        if value.dist is None or (value.origin is not None and value.origin.kind in PINNED):
            return
        stored = value.dist.normalized()
        if stored.mesh != left.mesh:
            return  # it is kept on another slice of the mesh
        is_reduced = value.name in complete and left.partial and not stored.partial
        is_chosen = value.origin is not None and value.origin.kind == "chosen"
        is_moved = is_chosen and value.name in complete and not stored.partial
        if stored != left and not is_reduced and not is_moved:
            subject = f"layout of {value_name(value.name)}"
            self._add(op, (subject, f"what the op leaves, {left}", stored))


def _read_elsewhere(function: Function) -> Iterator[str]:
    """Yields the values that ops read on another slice of the mesh than the value's own."""
    for op in function.ops:
        for name in op.operands:
            layout = function.values[name].dist
            if op.dist is not None and layout is not None and layout.mesh != op.dist.mesh:
                yield name


def _value_problems(value: Value) -> Iterator[Finding]:
    if value.dist is None:
        yield "layout", "one for every value", "none"
    elif len({monoid for _, monoid in value.dist.partial}) > 1:
        yield "layout", "pending reductions of one kind, since others don't commute", value.dist
    if value.origin is None or value.origin.kind not in ORIGIN_KINDS:
        yield "origin", f"one of {', '.join(ORIGIN_KINDS)}", value.origin


def _fallback_problems(dist: OpDist, op: Op) -> Iterator[Finding]:
    if dist.factors or dist.body or dist.pending:
        yield "choice", "to compute all of an op without a rule everywhere", "a split"
    if op.origin is not None and op.origin.kind != "fallback":
        yield "origin", "fallback, for an op without a rule", op.origin.kind


def _choice_problems(rule: Rule, dist: OpDist, op: Op) -> Iterator[Finding]:
    if dist.body and rule.body(dist.body) is None:
        bodies = [body.name for body in rule.bodies]
        yield "body", one_of(dist.body, bodies), repr(dist.body)
        return
    rule = rule.under(dist.body)
    yield from _axis_problems(dist)
    for factor, dim in dist.factors:
        if factor not in rule.sizes:
            yield "factor", one_of(factor, rule.sizes), repr(factor)
            continue
        if dim_size(dim) != rule.sizes[factor]:
            expected = f"sub-dimensions that multiply to {rule.sizes[factor]}"
            yield f"factor {factor}", expected, dim_size(dim)
        if dim_axes(dim) and factor in rule.whole:
            yield f"factor {factor}", "it whole, as the rule says", f"a split over {dim_axes(dim)}"
        if len(dim) != 1 and factor in rule.flat:
            yield f"factor {factor}", "one block, since it is addressed by index", f"{len(dim)}"
        yield from _reduction_problems(rule, factor, dim_axes(dim))
    for factor, count in Counter(factor for factor, _ in dist.factors).items():
        if count > 1:
            yield f"factor {factor}", "one layout", count
    yield from _pending_problems(rule, dist, op)


def _axis_problems(dist: OpDist) -> Iterator[Finding]:
    used = [axis for _, dim in dist.factors for axis in dim_axes(dim)]
    used.extend(pending.axis for pending in dist.pending)
    for axis, count in Counter(used).items():
        if axis not in dist.mesh.dim_names:
            yield "mesh axis", one_of(axis, dist.mesh.dim_names), repr(axis)
        elif count > 1:
            yield f"mesh axis {axis}", "one use in a choice", f"{count}"


def _reduction_problems(rule: Rule, factor: str, axes: tuple[str, ...]) -> Iterator[Finding]:
    for result, dims in enumerate(rule.results):
        if not axes or any(factor in dim for dim in dims):
            continue
        monoid = rule.reduce.get((factor, result))
        if monoid not in (*MONOIDS, SAME):
            expected = f"a rule that names the reduction of result {result}"
            yield f"factor {factor}", expected, monoid


def _pending_problems(rule: Rule, dist: OpDist, op: Op) -> Iterator[Finding]:
    for pending in dist.pending:
        subject = f"pending {pending.monoid}@{pending.axis}"
        if pending.monoid not in MONOIDS:
            yield subject, one_of(pending.monoid, MONOIDS), repr(pending.monoid)
        if not any(_allows(row, pending.operands, pending.monoid) for row in rule.linear):
            names = [op.operands[at] for at in pending.operands if at < len(op.operands)]
            got = ", ".join(map(value_name, names)) or "no operand"
            yield subject, _rows_text(rule), f"{got} at {list(pending.operands)} together"


def _allows(row: Linear, operands: tuple[int, ...], monoid: str) -> bool:
    return row.operands == frozenset(operands) and monoid in row.monoids


def _rows_text(rule: Rule) -> str:
    if not rule.linear:
        return "no pending operand, since the op isn't linear"
    rows = (f"{sorted(row.operands)} under {'/'.join(sorted(row.monoids))}" for row in rule.linear)
    return f"operands in which the op is linear ({', '.join(rows)})"


def _derived_problems(
    rule: Rule, dist: OpDist, op: Op, function: Function, left: tuple[Layout, ...]
) -> Iterator[Finding]:
    """Yields where the layouts that follow from the choice don't fit the tensors around the op."""
    counts = (len(rule.operands), len(rule.results))
    if counts != (len(op.operands), len(op.results)):
        yield "rule", f"one for {len(op.operands)} operands and {len(op.results)} results", counts
        return
    around = [
        *((name, consumed(rule, dist, at)) for at, name in enumerate(op.operands)),
        *zip(op.results, left, strict=True),
    ]
    for name, layout in around:
        for problem in layout.problems(function.values[name].global_shape):
            yield f"layout around the op of {value_name(name)}", "one that fits", problem
        if len({monoid for _, monoid in layout.partial}) > 1:
            expected = "pending reductions of one kind, since others don't commute"
            yield f"layout around the op of {value_name(name)}", expected, layout
