"""Random serial programs of many kinds of ops, and random ways to distribute them.

A program is written by running random torch functions on small tensors; the same functions are
then traced and lowered as a user's graph is. Everything follows from the seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from autopar.annotate import Pin
from autopar.base.errors import InvalidInputError
from autopar.cost import Cluster
from autopar.frontend.lower.exported import GraphInput, GraphOutput, Lowering
from autopar.frontend.lower.fx import lower
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.pipeline import CompileOptions
from tests.fuzz.draw import Draw
from tests.fuzz.ops import MULTIPLYING, OPS

MESHES = ((1,), (2,), (3,), (2, 2), (3, 2), (2, 2, 2), (5,))
STRATEGIES = ("auto", "data", "fsdp", "tensor", "replicate", None, "mixed")
SIZES = (1, 2, 2, 3, 3, 4, 4, 5, 6, 6, 8, 12)
LARGEST = 3000
SPECIAL = ((math.nan,), (math.inf, -math.inf))


@dataclass(frozen=True)
class Case:
    """A program with inputs and a way to distribute it.

    Attributes:
        program: The serial program.
        arrays: All inputs by value name.
        options: How to compile it.
    """

    program: Program
    arrays: dict[str, Tensor]
    options: CompileOptions

    @property
    def weights(self) -> dict[str, Tensor]:
        """The inputs that are parameters."""
        ports = self.program.signature.inputs
        return {port.name: self.arrays[port.name] for port in ports if port.role != "input"}

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs that the user provides."""
        return {name: it for name, it in self.arrays.items() if name not in self.weights}


@dataclass
class Writer:
    """Writes a program step by step.

    Attributes:
        dice: Every choice.
        tensors: Every value so far.
        exact: Whether each is the same to the bit, however its sums are formed. Only such values
            are compared, rounded or sorted.
        sources: Positions of the program's inputs.
        steps: Functions with the positions of their operands and of their first result.
        special: What else inputs hold: NaN, infinities.
        backward: Whether the program also returns gradients.
    """

    dice: random.Random
    generator: torch.Generator
    special: tuple[float, ...]
    backward: bool
    tensors: list[Tensor] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    steps: list[tuple[Callable[..., Any], tuple[int, ...], int]] = field(default_factory=list)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Returns a random shape."""
        rank = self.dice.choice((0, 1, 2, 2, 3, 3, 4)) if rank is None else rank
        shape = [self.dice.choice(SIZES) for _ in range(rank)]
        if shape and self.dice.random() < 0.02:
            shape[self.dice.randrange(rank)] = 0
        return tuple(shape)

    def source(self, shape: Sequence[int], kind: str = "float", bound: int = 4) -> int:
        """Adds an input; integers are in [0, bound)."""
        if kind == "float":
            tensor = torch.rand(tuple(shape), generator=self.generator, dtype=torch.float64)
            tensor = tensor * 4 - 2
            if self.special and tensor.numel() and self.dice.random() < 0.7:
                at = self.dice.randrange(tensor.numel())
                tensor.view(-1)[at] = self.dice.choice(self.special)
        else:
            low = 0 if kind != "int" else -3
            tensor = torch.randint(low, max(1, bound), tuple(shape), generator=self.generator)
            tensor = tensor.bool() if kind == "bool" else tensor
        self.sources.append(len(self.tensors))
        return self.keep(tensor, True)

    def keep(self, tensor: Tensor, exact: bool) -> int:
        """Adds a value and returns its position."""
        self.tensors.append(tensor)
        self.exact.append(exact)
        return len(self.tensors) - 1

    def apply(self, function: Callable[..., Any], operands: tuple[int, ...], exact: bool) -> None:
        """Adds a step, if torch accepts it and its results are small."""
        found = function(*(self.tensors[at] for at in operands))
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        if any(result.numel() > LARGEST or result.ndim > 6 for result in results):
            return
        self.steps.append((function, operands, len(self.tensors)))
        for result in results:
            self.keep(result, exact and all(self.exact[at] for at in operands))

    def write(self, length: int) -> None:
        """Adds up to `length` random steps."""
        for _ in range(self.dice.randint(1, 3)):
            self.source(self.shape(), self.dice.choice(("float", "float", "float", "int", "bool")))
        infinite = any(math.isinf(it) for it in self.special)
        names = sorted(set(OPS) - MULTIPLYING if infinite else OPS)
        for _ in range(length):
            known = len(self.tensors)
            sources = len(self.sources)
            try:
                step = OPS[self.dice.choice(names)](Draw(self))
                if step is not None:
                    self.apply(step.function, step.operands, step.exact)
            except (RuntimeError, IndexError, ValueError, TypeError):
                # Torch has no such op for these shapes and dtypes: forget what was added for it.
                del self.tensors[known:], self.exact[known:], self.sources[sources:]

    def run(self, *inputs: Tensor) -> list[Tensor]:
        """Runs all steps on other inputs."""
        values: dict[int, Tensor] = dict(zip(self.sources, inputs, strict=True))
        for function, operands, first in self.steps:
            found = function(*(values[at] for at in operands))
            results = list(found) if isinstance(found, (tuple, list)) else [found]
            values.update(enumerate(results, first))
        outputs = [values[at] for at in self.outputs()]
        return [*outputs, *self.gradients(outputs, inputs)] if self.backward else outputs

    def gradients(self, outputs: list[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns the gradients of the outputs' weighted sum by the inputs that matter."""
        floats = [it for it in outputs if it.is_floating_point() and it.requires_grad]
        wanted = [it for it in inputs if it.requires_grad]
        if not floats or not wanted:
            return []
        loss = torch.stack([(it * it.detach()).sum() for it in floats]).sum()
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        return [it for it in found if it is not None]

    def outputs(self) -> list[int]:
        """Returns what the program returns: unread values, some read ones, some inputs, twice."""
        read = {at for _, operands, _ in self.steps for at in operands}
        dice = random.Random(len(self.tensors))
        chosen = [at for at in range(len(self.tensors)) if at not in read or dice.random() < 0.1]
        return [*chosen, chosen[0]] if chosen and dice.random() < 0.2 else chosen


def random_case(seed: int, length: int | None = None) -> Case:
    """Returns the case of a seed."""
    dice = random.Random(seed)
    special = dice.choice(SPECIAL) if dice.random() < 0.15 else ()
    backward = not special and dice.random() < 0.15
    writer = Writer(dice, torch.Generator().manual_seed(seed), special, backward)
    writer.write(length or dice.randint(1, 14))
    try:
        program, arrays = _lowered(writer)
    except InvalidInputError:
        # Some gradients are tuples with holes, which programs don't have.
        program, arrays = _lowered(replace(writer, backward=False))
    mesh = ProcessMesh.of_shape(dice.choice(MESHES))
    strategy = dice.choice(STRATEGIES)
    if strategy == "mixed":
        presets = [dice.choice(("data", "fsdp", "tensor", "replicate")) for _ in mesh.dim_names]
        strategy = ",".join(f"{it}:{at}" for at, it in enumerate(presets))
    pins = random_pins(program, mesh, dice)
    return Case(program, arrays, CompileOptions(mesh, Cluster.load("cpu"), strategy, pins))


def random_pins(program: Program, mesh: ProcessMesh, dice: random.Random) -> tuple[Pin, ...]:
    """Returns pins of random values; sizes may be smaller than the axes."""
    values = [value for value in program.main.values.values() if value.shape]
    pins = []
    for value in dice.sample(values, min(len(values), dice.choice((0, 1, 2, 4, 8)))):
        entries: list[list[str]] = [[] for _ in value.shape]
        for axis in dice.sample(mesh.dim_names, dice.randint(0, mesh.ndim)):
            dice.choice(entries).append(axis)
        mapping = tuple(tuple(entry) if entry else -1 for entry in entries)
        pins.append(Pin(value.name, mapping, "a random pin"))
    return tuple(pins)


def _lowered(writer: Writer) -> tuple[Program, dict[str, Tensor]]:
    """Returns the traced program and its inputs by name."""
    given = [writer.tensors[at] for at in writer.sources]
    if writer.backward:
        given = [it.clone().requires_grad_(it.is_floating_point()) for it in given]
    graph = make_fx(torch.func.functionalize(writer.run))(*given).graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    inputs = {
        node: GraphInput(f"x{at}", writer.dice.choice(("input", "parameter")))
        for at, node in enumerate(placeholders)
    }
    (returned,) = (node for node in graph.nodes if node.op == "output")
    outputs = [GraphOutput(node, f"out{at}") for at, node in enumerate(returned.args[0])]
    program = lower(graph, Lowering(inputs, outputs))
    kept = {port.name for port in program.signature.inputs}
    arrays = {f"x{at}": it.detach() for at, it in enumerate(given) if f"x{at}" in kept}
    return program, arrays
