"""The verifiers: do a program's parts fit together, and does its distribution follow its rules?

Both find every problem before they raise, and show the op with its source line, what was expected
and what was got. A problem is a defect of the pass that ran last, unless the program was written
by hand.
"""

from __future__ import annotations

from autopar.base.errors import VerificationError
from autopar.ir.program import Program
from autopar.ir.verify.distribution import check_distribution, check_pins
from autopar.ir.verify.function import check_function
from autopar.ir.verify.problems import Problems
from autopar.ir.verify.signature import check_calls, check_signature


def verify_structure(program: Program) -> None:
    """Checks that a program of any level is well-formed.

    Names are unique and defined before they are used; calls and repeats fit the functions that
    they name; shapes, collectives and layouts are those of the program's level; outputs, aliases
    and signature refer to what exists.

    Raises:
        VerificationError: If anything is wrong, with all that is.
    """
    problems = Problems(program)
    _check_structure(program, problems)
    _raise(program, problems)


def verify_distribution(program: Program, pinned: Program | None = None) -> None:
    """Checks that a completed serial program can be computed as its layouts and choices say.

    Every value of main, and of the functions that were completed, has a layout and every op a
    choice, both with an origin. Each choice splits factors that the op's rule lets be split, with
    axes that exist, each used once; what flows through pending obeys a row of `Rule.linear`; and
    each result is stored as its op leaves it, unless it is pinned.

    Args:
        program: The completed program.
        pinned: The program before completion, whose annotated layouts must be unchanged.

    Raises:
        VerificationError: If anything is wrong, with all that is.
    """
    problems = Problems(program)
    _check_structure(program, problems)
    # Rules are functions of shapes, which must be right before a rule can be asked for.
    if not problems.found:
        check_distribution(program, problems)
        if pinned is not None:
            check_pins(program, pinned, problems)
    _raise(program, problems)


def _check_structure(program: Program, problems: Problems) -> None:
    check_signature(program, problems)
    for function in program.functions.values():
        check_function(function, program, problems)
    check_calls(program, problems)


def _raise(program: Program, problems: Problems) -> None:
    if problems.found:
        count = len(problems.found)
        name = f" {program.name!r}" if program.name else ""
        title = f"the {program.level} program{name} has {count} problem{'s' if count > 1 else ''}:"
        raise VerificationError(title, problems.found)
