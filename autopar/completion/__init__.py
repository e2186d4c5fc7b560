"""Completion: from pins to a layout for every value and op.

presets     functions that pin: replicate, data, tensor, fsdp
spread      pins spread through the factor rules to a fixed point
refine      conflicts are decided by predicted cost
pending     partial values flow until a reduction is cheapest
legalize    chosen bodies are expanded
explain     what a user should know of it
"""

from __future__ import annotations

from autopar.completion.complete import Complete
from autopar.completion.explain import explain
from autopar.completion.legalize import Legalize
from autopar.completion.presets.named import apply_strategy

__all__ = ["Complete", "Legalize", "apply_strategy", "explain"]
