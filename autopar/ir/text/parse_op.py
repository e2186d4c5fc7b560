"""Parses an op: its kind, its arguments and what follows them."""

from __future__ import annotations

import re

from autopar.base.errors import UNKNOWN
from autopar.ir.layout import Origin
from autopar.ir.program import Loops, Op, OpDist
from autopar.ir.text.cursor import Cursor
from autopar.ir.text.parse_parts import LOC, PartsParser
from autopar.ir.text.words import KIND


class OpParser:
    """An op and the clauses that follow it, in any order."""

    def __init__(self, parts: PartsParser, cursor: Cursor) -> None:
        self._parts = parts
        self._cursor = cursor
        self._dist: OpDist | None = None
        self._origin: Origin | None = None
        self._loc = UNKNOWN
        self._phase = "forward"
        self._plan: tuple[tuple[str, str], ...] = ()
        self._loops: Loops = ()
        self._numbers: dict[str, int] = {}

    def read(self, results: tuple[str, ...]) -> Op:
        """Reads an op behind the `=`."""
        kind = self._cursor.named(KIND, "an op, like aten.mm.default")
        self._cursor.expect("(")
        args = self._cursor.listed(self._parts.named_arg, ")")
        while self._clause():
            pass
        return Op(
            kind,
            args,
            results,
            self._dist,
            self._origin,
            self._loc,
            self._numbers.get("stage", 0),
            self._numbers.get("microbatch", 0),
            self._phase,
            self._plan,
            self._loops,
        )

    def _clause(self) -> bool:
        cursor = self._cursor
        if cursor.sign("{"):
            self._dist = self._parts.op_dist()
        elif cursor.sign("~"):
            self._origin = self._parts.origin()
        elif cursor.match(_STAGE):
            self._numbers["stage"] = cursor.integer()
        elif cursor.match(_MICROBATCH):
            self._numbers["microbatch"] = cursor.integer()
        elif cursor.match(_LOOPS):
            self._loops = cursor.listed(self._loop, ")")
        elif cursor.match(_PHASE):
            self._phase = cursor.word("a phase")
        elif cursor.match(_PLAN):
            self._plan = cursor.listed(self._plan_entry, ")")
        elif cursor.match(LOC):
            self._loc = self._parts.loc()
        else:
            return False
        return True

    def _loop(self) -> tuple[str, int]:
        name = self._cursor.word("the name of a loop")
        self._cursor.expect("=")
        return name, self._cursor.integer()

    def _plan_entry(self) -> tuple[str, str]:
        name = self._cursor.word("the name of a plan entry")
        self._cursor.expect("=")
        return name, self._cursor.word("a word or string")


_STAGE = re.compile(r"stage\s*=")
_MICROBATCH = re.compile(r"microbatch\s*=")
_LOOPS = re.compile(r"loops\s*\(")
_PHASE = re.compile(r"phase\s*=")
_PLAN = re.compile(r"plan\s*\(")
