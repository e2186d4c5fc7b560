"""A rank's program as a CPU computes it at inference."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from autopar.ir.memory.kernels import OWN_NAMESPACE, TORCH_NAMESPACES
from autopar.ir.ops.products.recurrent import GRADIENT
from autopar.ir.program import Program
from autopar.runtime.ports.ports import is_weight
from autopar.runtime.ports.rates import trains
from autopar.runtime.tuned.choices import compute_chosen
from autopar.runtime.tuned.constants import Constants, taken_out
from autopar.runtime.tuned.convolutions import tune_convolutions
from autopar.runtime.tuned.graph import Tuning
from autopar.runtime.tuned.multiples import add_multiples
from autopar.runtime.tuned.products import tune_lookups, tune_products
from autopar.runtime.tuned.writing import write_over_operands


class Tuned(NamedTuple):
    """What runs.

    Attributes:
        module: Takes the arguments of the program, and then constants.
        constants: What these are.
    """

    module: fx.GraphModule
    constants: Constants

    def forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        """Returns what the program does of its arguments."""
        found: tuple[Tensor, ...] = self.module.forward(*arguments, *self.constants.of(arguments))
        return found


def can_be_tuned(program: Program, device: torch.device) -> bool:
    """Returns whether there is another form of a rank's program that is faster.

    Functions and loops stay as they are, and so does what writes state, trains or takes nothing.
    """
    main = program.main
    plain = len(program.functions) == 1 and bool(main.inputs) and not main.aliases
    return plain and device.type == "cpu" and not trains(program)


def needs_no_autograd(program: Program) -> bool:
    """Returns whether a program may run in inference mode, where torch keeps no account for it.

    Gradients of recurrent layers are computed by autograd, and other libraries' ops may be too.
    """
    kinds = {op.kind for function in program.functions.values() for op in function.ops}
    known = (*TORCH_NAMESPACES, OWN_NAMESPACE)
    return GRADIENT not in kinds and all(kind.partition(".")[0] in known for kind in kinds)


def tuned(program: Program, module: fx.GraphModule) -> Tuned:
    """Rewrites what a program was emitted as.

    Args:
        program: A rank's program that can be tuned.
        module: What `emit` made of it, which is lost.
    """
    weights = {port.name for port in program.signature.inputs if is_weight(port)}
    tuning = Tuning(module, weights)
    tune_lookups(tuning)
    tune_products(tuning)
    tune_convolutions(tuning)
    branches = compute_chosen(tuning)
    write_over_operands(tuning)
    for branch in branches:
        write_over_operands(Tuning(branch, ()))
        branch.recompile()
    add_multiples(tuning)
    constants = taken_out(tuning)
    module.graph.lint()
    module.recompile()
    return Tuned(module, constants)
