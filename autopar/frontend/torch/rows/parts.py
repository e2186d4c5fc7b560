"""Bodies of `for` and `if` in the source: whether skipping one is seen only in tensors.

A part is left alone unless all that it does is to bind names that nothing else reads, or that are
tensors, to write into tensors, and to call.
"""

from __future__ import annotations

import ast
import linecache
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Part:
    """Lines that are run or skipped.

    Attributes:
        first, last: The lines.
        inverted: Whether they are skipped if the condition is true.
        writes: Whether they write into a tensor by an index.
        bound: Names that they bind and other lines read, or that they read before.
        targets: Names of what they write into.
    """

    first: int
    last: int
    inverted: bool
    writes: bool
    bound: frozenset[str]
    targets: frozenset[str]


def loop_at(frame: FrameType) -> Part | None:
    """Returns the body of the loop that a frame begins; None if it may have other effects."""
    for function, node, _ in _statements(frame):
        if isinstance(node, ast.For) and _spans(node.iter, frame.f_lineno):
            if node.orelse or not _goes_through(node.iter):
                return None
            found = _part(function, node.body, inverted=False, also=node.target)
            return found if found is not None and _binds_tensors(found, frame) else None
    return None


def skipped_at(frame: FrameType, *, compared: bool = False) -> Part | None:
    """Returns what the `if` of a frame's line skips; None if that may have other effects.

    Args:
        frame: The frame, whose `if` is being asked.
        compared: Whether a comparison of Python asks, which then must be all that decides.
    """
    for function, node, rest in _statements(frame):
        if isinstance(node, ast.If) and _spans(node.test, frame.f_lineno):
            found = _skipped(function, node, rest, compared=compared)
            return found if found is not None and _binds_tensors(found, frame) else None
    return None


def _skipped(
    function: ast.AST, node: ast.If, rest: Sequence[ast.stmt], *, compared: bool
) -> Part | None:
    test, negated = _without_not(node.test)
    if node.orelse or not _decides(test, compared=compared):
        return None
    continues = len(node.body) == 1 and isinstance(node.body[0], ast.Continue)
    body = rest if continues else node.body
    if body and body[0].lineno <= (test.end_lineno or test.lineno):
        return None  # The line doesn't tell whether it is run.
    return _part(function, body, inverted=negated != continues)


def _without_not(test: ast.expr) -> tuple[ast.expr, bool]:
    """Returns what a condition negates, and whether it does."""
    negated = False
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, negated = test.operand, not negated
    return test, negated


def asks_length(frame: FrameType, tensor: Tensor) -> Callable[[object], bool] | None:
    """Returns what the `if` of a frame's line asks of `len(tensor)`; None if it is another thing.

    Args:
        frame: The frame, which calls `len`.
        tensor: What it calls it with.
    """
    for _, node, _ in _statements(frame):
        if isinstance(node, ast.If) and _spans(node.test, frame.f_lineno):
            return _asks_length(_without_not(node.test)[0], frame, tensor)
    return None


_COMPARES: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _asks_length(
    test: ast.expr, frame: FrameType, tensor: Tensor
) -> Callable[[object], bool] | None:
    def is_length(node: ast.expr) -> bool:
        named = node.args[0] if isinstance(node, ast.Call) and _is_len(node) else None
        return isinstance(named, ast.Name) and frame.f_locals.get(named.id) is tensor

    if is_length(test):
        return operator.truth
    if not isinstance(test, ast.Compare) or len(test.ops) > 1:
        return None
    compare, other = _COMPARES.get(type(test.ops[0])), test.comparators[0]
    if compare is None or not is_length(test.left) or not isinstance(other, ast.Constant):
        return None
    return lambda length: compare(length, other.value)


def _is_len(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "len" and len(call.args) == 1


_HANDED_ON = frozenset(
    ("nonzero", "argwhere", "where", "flatten", "view", "reshape", "squeeze", "ravel", "to", "cpu")
)


def _goes_through(node: ast.expr) -> bool:
    """Whether a loop goes through what is written there, and not through what is made of it."""
    if isinstance(node, ast.Subscript):
        return _goes_through(node.value)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _HANDED_ON
    return isinstance(node, (ast.Name, ast.Attribute))


_INDIRECT = (ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.NamedExpr, ast.Lambda, ast.comprehension)


def _decides(test: ast.expr, *, compared: bool) -> bool:
    """Whether what is asked within a condition is the condition, and not what it is made of."""
    for node in ast.walk(test):
        if isinstance(node, _INDIRECT) and not _is_number(node):
            return False
        if isinstance(node, ast.Compare):
            if len(node.ops) > 1 or type(node.ops[0]) not in _COMPARES:
                return False
            if compared and node is not test:
                return False
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and not (compared and _is_len(node)):
                return False
            asks = isinstance(node.func, ast.Attribute) and node.func.attr in ("item", "tolist")
            if asks and node is not test:
                return False
    return True


def _is_number(node: ast.AST) -> bool:
    """Whether it is a negative number."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)


def _binds_tensors(part: Part, frame: FrameType) -> bool:
    values = frame.f_locals
    return all(isinstance(values.get(name), Tensor) for name in (*part.bound, *part.targets))


def _spans(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


Found = tuple[ast.AST, ast.stmt, Sequence[ast.stmt]]
"""A function, a statement of it, and those that follow it in the same body of a loop."""


def _statements(frame: FrameType) -> Iterator[Found]:
    """Yields the compound statements of the function of a frame, inner ones first."""
    tree = _tree(frame.f_code.co_filename)
    first = frame.f_code.co_firstlineno
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name == frame.f_code.co_name
        and min([node.lineno, *(each.lineno for each in node.decorator_list)]) <= first
        and first <= node.lineno
    ]
    for function in functions:
        found = list(_within(function, function.body, in_loop=False))
        yield from reversed(found)


def _within(function: ast.AST, body: Sequence[ast.stmt], *, in_loop: bool) -> Iterator[Found]:
    for at, node in enumerate(body):
        yield function, node, body[at + 1 :] if in_loop else ()
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if inner and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                loops = isinstance(node, (ast.For, ast.While)) and name == "body"
                yield from _within(function, inner, in_loop=loops)


@lru_cache(maxsize=64)
def _tree(path: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ast.Module([], [])


_ALLOWED: tuple[type[ast.stmt], ...] = (
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Expr,
    ast.If,
    ast.With,
    ast.Pass,
)
_ALLOWED += (ast.Continue, ast.For)

_HIDDEN = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
"""Expressions that do more than to compute a value."""

_WRITES = frozenset(("index_add_", "index_put_"))
"""Methods that may be called for what they write."""


def _part(
    function: ast.AST, body: Sequence[ast.stmt], *, inverted: bool, also: ast.expr | None = None
) -> Part | None:
    """Returns a body; None if it does what can't be told to have no effect."""
    if not body or any(isinstance(n, (ast.Nonlocal, ast.Global)) for n in ast.walk(function)):
        return None
    inside = [node for each in body for node in ast.walk(each)]
    if any(isinstance(node, ast.stmt) and not isinstance(node, _ALLOWED) for node in inside):
        return None
    if any(isinstance(node, _HIDDEN) for node in inside):
        return None
    if any(isinstance(n, ast.Call) and _is_change(n.func) for n in inside):
        return None
    targets: set[str] = set()
    writes = False
    for node in inside:
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):
                continue
            target = _written(node.value)
            if target is None:
                return None
            targets.add(target)
            writes = True
        for target_node in _assigned(node):
            if isinstance(target_node, ast.Subscript) and isinstance(target_node.value, ast.Name):
                targets.add(target_node.value.id)
                writes = True
            elif not isinstance(target_node, ast.Name):
                return None
    inner = {id(node) for node in inside}
    if also is not None:
        inner |= {id(node) for node in ast.walk(also)}
    stored = [n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    looped = [] if also is None else [n.id for n in ast.walk(also) if isinstance(n, ast.Name)]
    outside = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inner
    }
    first = _read_first(body, set(looped))
    bound = {name for name in stored if name in outside or name in first}
    if set(looped) & outside:
        return None
    nonlocal_names = targets - {name for name in stored if name not in bound}
    last = max(each.end_lineno or each.lineno for each in body)
    return Part(body[0].lineno, last, inverted, writes, frozenset(bound), frozenset(nonlocal_names))


_CHANGES = frozenset(("pop", "popitem", "setdefault"))
"""Methods that change Python's containers and return something."""


def _is_change(func: ast.expr) -> bool:
    """Whether what is called changes an object of Python's, as `next` does an iterator."""
    if isinstance(func, ast.Name):
        return func.id == "next"
    return isinstance(func, ast.Attribute) and func.attr in _CHANGES


def _written(call: ast.expr) -> str | None:
    """Returns the name of the tensor that a call writes into; None of another call."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    named = call.func.value
    return named.id if call.func.attr in _WRITES and isinstance(named, ast.Name) else None


def _assigned(node: ast.AST) -> Iterator[ast.expr]:
    """Yields what a statement assigns to."""
    if isinstance(node, ast.Assign):
        waiting = list(node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For)):
        waiting = [node.target]
    elif isinstance(node, ast.With):
        waiting = [item.optional_vars for item in node.items if item.optional_vars is not None]
    else:
        return
    while waiting:
        target = waiting.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            waiting.extend(target.elts)
        elif isinstance(target, ast.Starred):
            waiting.append(target.value)
        else:
            yield target


def _read_first(body: Sequence[ast.stmt], known: set[str]) -> set[str]:
    """Returns the names that a body reads before it binds them."""
    bound, found = set(known), set()

    def read(node: ast.AST) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                found.update({each.id} - bound)

    def bind(node: ast.AST) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                bound.add(each.id)

    def run(statements: Sequence[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.AugAssign):
                if isinstance(node.target, ast.Name):
                    found.update({node.target.id} - bound)
                read(node.target)
                read(node.value)
            elif isinstance(node, (ast.If, ast.For, ast.With)):
                heads = (
                    [node.test]
                    if isinstance(node, ast.If)
                    else [node.iter]
                    if isinstance(node, ast.For)
                    else [item.context_expr for item in node.items]
                )
                for head in heads:
                    read(head)
                if isinstance(node, ast.For):
                    bind(node.target)
                run(node.body)
                run(getattr(node, "orelse", []))
            else:
                read(node)
                bind(node)

    run(body)
    return found
