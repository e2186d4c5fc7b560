"""Programs as text, without what a test isn't about."""

from __future__ import annotations

import re
from textwrap import dedent

from autopar.ir.program import Program
from autopar.ir.text import parse_program, print_program

_ORIGIN = re.compile(r' ~\w+(\("(?:[^"\\]|\\.)*"\))?')
_SPACES = re.compile(" +")
_LOC = re.compile(r" loc\([^)]*\)")


def program(body: str, mesh: str = "dp=2, tp=4") -> Program:
    """Parses the body of `main`."""
    return parse_program(
        f'program "test" serial\nmesh {mesh}\n\nfunc main {{\n{dedent(body).strip()}\n}}\n'
    )


def shown(done: Program, *, origins: bool = False) -> str:
    """Returns the body of `main` as text, without locations and, by default, origins."""
    text = print_program(done).split("func main {\n")[1].split("\n}")[0]
    text = _LOC.sub("", text if origins else _ORIGIN.sub("", text))
    # In a completed program every value has a layout, so this needs no mention.
    return lines(text.replace(" replicated", ""))


def lines(text: str) -> str:
    """Returns text without indentation and alignment."""
    return "\n".join(_SPACES.sub(" ", line.strip()) for line in dedent(text).strip().splitlines())
