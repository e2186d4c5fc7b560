"""Explanations of a compiled program: why something is split as it is, and what else it could be.

why            the chain of reasons behind a layout or a choice
alternatives   other layouts of a value, other choices of an op, and what each would cost
communication  the most expensive collectives, with the user's lines
explaining     all of this, of one value
show           what it says, and as text
"""

from __future__ import annotations

from autopar.analysis.explanation.alternatives import Alternative
from autopar.analysis.explanation.communication import Expense
from autopar.analysis.explanation.explaining import explain
from autopar.analysis.explanation.show import Explanation, Overview
from autopar.analysis.explanation.why import Reason

__all__ = [
    "Alternative",
    "Expense",
    "Explanation",
    "Overview",
    "Reason",
    "explain",
]
