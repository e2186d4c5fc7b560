"""Operators that can't be part of a static program, and why."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.frontend.onnx.trace.node import Node, Refused
from autopar.frontend.onnx.trace.values import TensorTree, Translation

_TEXT = ("strings have no place in a program", "do this before the program is run")
_REASONS: Mapping[str, tuple[str, str]] = {
    "ImageDecoder": (
        "no codec for images has a place in a program",
        "decode images before they are given to the program",
    ),
    "RegexFullMatch": _TEXT,
    "StringConcat": _TEXT,
    "StringNormalizer": _TEXT,
    "StringSplit": _TEXT,
}


def refusal(what: str, advice: str) -> Translation:
    """Returns the translation of an operator that is refused.

    Args:
        what: Why.
        advice: What the user may do.
    """

    def run(node: Node, *inputs: object) -> TensorTree:
        raise Refused(what, advice)

    return Translation(run)


TABLE: Mapping[str, Translation] = {name: refusal(*why) for name, why in _REASONS.items()}
