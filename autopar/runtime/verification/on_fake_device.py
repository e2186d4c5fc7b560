"""Whether a device can run a program, found out without one.

Each op of a rank is called on fake tensors, which have a device, a dtype and a shape but no
elements, as torch has them for any device. So what an op would be given and return there is known:
that no tensor of the host gets in between, that there is a kernel, and that results are what the
program says. Fakes accept what a device refuses, so what its kernels want besides is a table
(`autopar.ir.ops.on_gpus`), and ops of other devices are known by name.

Two things are not seen: values, and what a kernel does with strides that it wasn't written for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._pytree import tree_leaves

from autopar.ir.collectives import is_collective
from autopar.ir.deployment import Deployment
from autopar.ir.devices import CPU, CUDA
from autopar.ir.emitted import OFFLOAD
from autopar.ir.memory.kernels import OWN_NAMESPACE, TORCH_NAMESPACES, overload
from autopar.ir.memory.transfers import ENDED, STARTED, hosted, is_on_host
from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS
from autopar.ir.ops.on_devices import is_own
from autopar.ir.ops.on_gpus import concrete, unmet
from autopar.ir.program import Function, Op, Program, Value
from autopar.ir.rules.foreign import bare_kind
from autopar.runtime.collectives.async_collectives import ENDS
from autopar.runtime.collectives.groups import virtual_groups
from autopar.runtime.execute.body import GUARD
from autopar.runtime.execute.control import Call, Iterations, Repeat
from autopar.runtime.execute.describe import describe_op, reason_of
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import (
    code_expressions,
    code_key,
    specialize_functions,
    specialize_signature,
)
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.kernels.table import IR_DTYPES, TORCH_DTYPES
from autopar.runtime.ports.open_inputs import deployment_at, planned_sizes
from autopar.runtime.ports.rates import is_rate, trains
from autopar.runtime.verification.without_driver import without_driver


@dataclass(frozen=True)
class Obstacle:
    """Why a device can't run an op as a program says.

    Attributes:
        rank: A rank that has it; others whose code is equal have it too.
        op: The op.
        reason: What is in the way.
    """

    rank: int
    op: Op
    reason: str

    def __str__(self) -> str:
        """Returns it on one line, with the place in the model."""
        return f"{describe_op(self.op)} on rank {self.rank}: {self.reason}"


READS_VALUES = "reads values on the host, for which the device has to be waited for"
"""The reason of what runs, but not without a halt: kernels that look at their operands."""


def obstacles(deployment: Deployment, device: str = CUDA) -> tuple[Obstacle, ...]:
    """Returns what keeps devices of a type from running a deployment.

    Programs whose sizes are open are taken at those that were planned for.

    Args:
        deployment: What ranks run.
        device: The type of the devices.
    """
    sizes = planned_sizes(deployment.programs[0])
    deployment = deployment_at(deployment, sizes) if sizes else deployment
    found: list[Obstacle] = []
    for rank, program in _different(deployment):
        found += _Rank(deployment, rank, program, device).obstacles()
    return tuple(found)


def _different(deployment: Deployment) -> Iterator[tuple[int, Program]]:
    """Yields the ranks whose code differs, with their programs."""
    expressions = [code_expressions(program) for program in deployment.programs]
    seen = set()
    for rank, entry in enumerate(deployment.ranks):
        coords = deployment.coords_of(rank)
        known = entry.program, code_key(expressions[entry.program], coords)
        if known not in seen:
            seen.add(known)
            shared = deployment.program_of(rank)
            program = specialize_functions(shared, coords)
            yield rank, replace(program, signature=specialize_signature(shared, coords))


class _Rank:
    """A rank that runs on fake tensors.

    Args:
        deployment: What ranks run.
        rank: The rank.
        program: What it runs, without rank expressions.
        device: The type of its device.
    """

    def __init__(self, deployment: Deployment, rank: int, program: Program, device: str) -> None:
        self.rank = rank
        self.program = program
        self.device = torch.device(device, 0)
        judges = trains(program) and not hosted(program)
        in_place = InPlace(held=True if judges else None)
        self.module = emit(program, virtual_groups(deployment, rank), self.device, in_place)
        self.found: dict[tuple[int, str], Obstacle] = {}
        self.values = {
            id(op): [function.values[name] for name in op.results]
            for function in program.functions.values()
            for op in function.ops
        }

    def obstacles(self) -> list[Obstacle]:
        """Returns what is in the way."""
        for function in self.program.functions.values():
            self._look(function)
        mode = FakeTensorMode(allow_fallback_kernels=False)
        with _fused_steps_known(), mode, without_driver(), torch.no_grad():
            self._run(self.module, self._inputs())
        return [*self.found.values()]

    def _look(self, function: Function) -> None:
        """Notes ops that are known not to run, by their kinds, dtypes and sizes."""
        for op in function.ops:
            if is_own(op.kind, self.device.type):
                self._note(op, "only the CPU has a kernel for it")
            elif _lacks_kernel(op.kind, self.device.type):
                self._note(op, f"the library that it is from has no kernel for {self.device.type}")
            elif self.device.type == CUDA and not is_on_host(op):
                for reason in unmet(op, function.values):
                    self._note(op, reason)

    def _note(self, op: Op, reason: str) -> None:
        self.found.setdefault((id(op), reason), Obstacle(self.rank, op, reason))

    def _inputs(self) -> tuple[Tensor, ...]:
        main, on_host = self.program.main, hosted(self.program)
        rates = {port.name for port in self.program.signature.inputs if is_rate(port)}
        there = {*on_host, *rates}
        return tuple(
            self._empty(main.values[name], CPU if name in there else None) for name in main.inputs
        )

    def _empty(self, value: Value, device: str | None = None) -> Tensor:
        dtype = TORCH_DTYPES[value.dtype]
        return torch.empty(concrete(value.shape), dtype=dtype, device=device or self.device)

    def _run(self, module: fx.GraphModule, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Runs a function; where an op fails, what it should have computed takes its place."""
        values: dict[fx.Node, Any] = {}
        fresh = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(fresh)
                continue
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "output":
                return tuple(args[0])
            values[node] = self._computed(module, node, args, kwargs)
        raise AssertionError("a program has outputs")

    def _computed(
        self, module: fx.GraphModule, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        op: Op | None = node.meta["op"]
        if node.op == "call_module":
            return self._called(module.get_submodule(str(node.target)), args[0])
        if op is not None and (is_collective(op.kind) or op.kind in (*STARTED, *ENDED)):
            return self._moved(op, node, args)
        if op is not None and op.kind == GUARD:
            return None
        try:
            assert callable(node.target)
            found = node.target(*args, **kwargs)
        except Exception as error:
            if op is None:
                raise
            self._note(op, _reason(error))
            found = [self._empty(value) for value in self.values.get(id(op), ())]
            found = found[0] if "value" in node.meta and len(found) == 1 else found
        return self._checked(node, args, found) if "value" in node.meta else found

    def _called(self, callee: Any, box: list[Any]) -> tuple[Any, ...]:
        if isinstance(callee, Call):
            return self._run(callee.body, (box,))
        assert isinstance(callee, Repeat)
        run = Iterations(callee.loop, box)
        for iteration in range(callee.loop.trip):
            run.add(self._run(callee.body, (run.box(iteration),)))
        return run.results()

    def _moved(self, op: Op, node: fx.Node, args: tuple[Any, ...]) -> Any:
        """Returns what is sent or received, or goes from one memory to the other."""
        given = args[0]
        if op.kind in ENDED or node.target in ENDS:
            return given
        if is_collective(op.kind) and given.device.type != self.device.type:
            self._note(op, f"sends what is on {given.device}")
        (value,) = self.values[id(op)]
        return self._empty(value, CPU if op.kind == OFFLOAD else None)

    def _checked(self, node: fx.Node, args: tuple[Any, ...], found: Any) -> Any:
        """Returns a value, or the one that the program says if it is another."""
        value, op = node.meta["value"], node.meta["op"]
        if not node.users or not isinstance(found, Tensor):
            return found
        dtype = IR_DTYPES.get(found.dtype, str(found.dtype))
        if (dtype, tuple(found.shape)) != (value.dtype, value.shape):
            computed = f"{dtype}{list(found.shape)}"
            self._note(op, f"computes {computed}, the program says {value.dtype}{[*value.shape]}")
            return self._empty(value)
        if found.device.type != self.device.type and not is_on_host(op) and not _of_numbers(args):
            self._note(op, f"its result is on {found.device}")
            return self._empty(value)
        return found


@contextmanager
def _fused_steps_known() -> Iterator[None]:
    """Lets fakes be given to optimizers' steps with a learning rate in a tensor.

    Torch says of those with a number alone what they do: they write over what they are given.
    """
    steps = [kind.split(".")[1:] for kind in sorted(FUSED_STEPS) if kind.endswith(_TENSOR_RATE)]
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, variant in steps:
            registered = f"{name}_.{variant}"
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{registered}", "Meta"):
                library.impl(registered, _written, "Meta")
        yield


_TENSOR_RATE = ".tensor_lr"


def _written(*args: Any, **kwargs: Any) -> None:
    """Stands for a kernel that writes over its operands and returns nothing."""


def _lacks_kernel(kind: str, device: str) -> bool:
    """Returns whether another library's op is registered for other devices only."""
    namespace, _, rest = bare_kind(kind).partition(".")
    if namespace in (*TORCH_NAMESPACES, OWN_NAMESPACE) or overload(bare_kind(kind)) is None:
        return False
    name, _, variant = rest.rpartition(".")
    registered = f"{namespace}::{name}" + ("" if variant == "default" else f".{variant}")
    key = device.upper()
    return not torch._C._dispatch_has_computed_kernel_for_dispatch_key(registered, key)


def _reason(error: Exception) -> str:
    """Returns why an op can't be called."""
    return READS_VALUES if isinstance(error, DataDependentOutputException) else reason_of(error)


def _of_numbers(args: Sequence[Any]) -> bool:
    """Returns whether an op reads numbers of the host alone, as learning rates are."""
    tensors = [each for each in tree_leaves(args) if isinstance(each, Tensor)]
    return bool(tensors) and all(each.ndim == 0 and each.device.type == CPU for each in tensors)
