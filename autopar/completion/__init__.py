"""Completion: from pins to a layout for every value and op.

prepare     views, moves and fused weights, before anything is decided
presets     functions that pin, each under a name
problem     what is to be decided, as one value
propagate   pins through the factor rules, and what is cheapest around them
search      the fastest plan, and what every plan takes at least
submesh     programs whose ops run on slices of the mesh
legalize    chosen bodies are expanded
explain     what a user should know of it
"""

from __future__ import annotations

from autopar.completion.complete import Complete
from autopar.completion.explain import explain
from autopar.completion.legalize import Legalize
from autopar.completion.presets.named import apply_strategy

__all__ = ["Complete", "Legalize", "apply_strategy", "explain"]
