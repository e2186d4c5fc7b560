"""A pass gets the options that it has, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.ir.passes import with_options
from autopar.ir.program import Program


@dataclass(frozen=True)
class Rename:
    """Gives a program another name."""

    name: ClassVar[str] = "rename"
    to: str = "renamed"
    loud: bool = False

    def __call__(self, program: Program) -> Program:
        """Returns the program with the name."""
        return replace(program, name=self.to.upper() if self.loud else self.to)


def test_a_pass_gets_the_options_that_it_has() -> None:
    assert with_options(Rename, {"loud": True, "cluster": "cpu"}) == Rename(loud=True)


def test_what_is_no_option_is_never_set() -> None:
    assert with_options(Rename, {"name": "other"}).name == "rename"
