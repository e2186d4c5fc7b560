"""What a program of a module reads of the module and of a call, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.frontend.torch import Differentiable
from autopar.runtime.ports.ports import seed_input


@dataclass(frozen=True)
class Wiring:
    """What a variant reads of the module and of a call, and what it gives back.

    Attributes:
        parameters, buffers, constants, batch, tangents: Names of the program's inputs, each kind
            in the order in which the variant gets it.
        seed: Name of the seed; None if nothing is drawn.
        outputs: Number of outputs.
        updated: The buffers and parameters with new contents.
        gradients: For each parameter, and after them for each tensor of the batch: the position
            of its gradient in what the backward program returns; None without one.
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    constants: tuple[str, ...]
    batch: tuple[str, ...]
    tangents: Mapping[int, str]
    seed: str | None
    outputs: int
    updated: tuple[str, ...]
    gradients: tuple[int | None, ...]


def wire(captured: Differentiable) -> Wiring:
    """Returns how a captured module is connected."""
    by_role: dict[str, list[str]] = {}
    for port in captured.program.signature.inputs:
        # A buffer that no state dict has is a constant to the compiler, or state if it changes.
        unsaved = port.role in ("constant", "state") and port.name not in captured.constants
        by_role.setdefault("buffer" if unsaved else port.role, []).append(port.name)
    seed = seed_input(captured.program)
    parameters, batch = by_role.get("parameter", []), by_role.get("input", [])
    returned = [*captured.batch_gradients.values(), *captured.gradients.values()]
    names = [captured.gradients.get(name) for name in parameters]
    names.extend(captured.batch_gradients.get(at) for at in range(len(batch)))
    return Wiring(
        tuple(parameters),
        tuple(by_role.get("buffer", [])),
        tuple(by_role.get("constant", [])),
        tuple(batch),
        captured.tangents,
        None if seed is None else seed.name,
        len(captured.outputs),
        tuple(captured.updates),
        tuple(None if name is None else returned.index(name) for name in names),
    )
