"""How messages name an op, and say what went wrong with it."""

from __future__ import annotations

from autopar.ir.program import Op


def describe_op(op: Op) -> str:
    """Returns an op as error messages name it: what, which value, where it comes from."""
    return f"{op.kind} -> %{', %'.join(op.results)} ({op.loc})"


def describe_failure(op: Op, error: BaseException) -> str:
    """Returns the message of an op that failed."""
    return f"{describe_op(op)}: {reason_of(error)}"


def reason_of(error: BaseException) -> str:
    """Returns the first line of an error, or its type if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
