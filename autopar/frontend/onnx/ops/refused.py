"""Operators that can't be part of a static program, and why."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.frontend.onnx.node import Node, Refused
from autopar.frontend.onnx.values import TensorTree, Translation

_TEXT = "strings have no place in a program"
_DYNAMIC = "how many results it has depends on the program's inputs"
_REASONS: Mapping[str, str] = {
    "ImageDecoder": "decode images before they are given to the program",
    "NonMaxSuppression": _DYNAMIC,
    "RegexFullMatch": _TEXT,
    "StringConcat": _TEXT,
    "StringNormalizer": _TEXT,
    "StringSplit": _TEXT,
}


def _refusal(reason: str) -> Translation:
    def run(node: Node, *inputs: object) -> TensorTree:
        raise Refused(reason)

    return Translation(run)


TABLE: Mapping[str, Translation] = {name: _refusal(reason) for name, reason in _REASONS.items()}
