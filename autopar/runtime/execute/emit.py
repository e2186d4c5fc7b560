"""The one emitter: a concrete function becomes an fx graph, whose generated code runs it.

Every executor runs the graph made here: serial runs and real ranks call the generated code, which
drops each value after its last use; the virtual mesh steps through the nodes and stops at
collectives. `call` and `repeat` become submodules, emitted once per callee.

Sizes that are open are more inputs of the graph, behind the others; it computes what follows from
them. So it is emitted once for many sizes (see `autopar.runtime.execute.code`).

Each node carries in `meta`:
    op      the op that it carries out (also on the nodes that pick one of several results)
    value   the name of the value that it holds, where it holds one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import fx

from autopar.base.errors import RuntimeFailure
from autopar.ir.memory.updates import plan_writes
from autopar.ir.program import Function, Program
from autopar.ir.used_sizes import counted_in, used_sizes
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.body import Body, Context, as_identifier
from autopar.runtime.execute.in_place import add_in_place
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.kernels.table import Kernel, kernel


def emit(
    program: Program,
    groups: Mapping[str, Group],
    device: torch.device | str = "cpu",
    in_place: InPlace | None = None,
    find_kernel: Callable[[str], Kernel] = kernel,
) -> fx.GraphModule:
    """Returns a module that computes `main` of a concrete program.

    It takes the inputs of `main` by position, and then the sizes that the program leaves open, in
    the order of `used_sizes`. It returns a tuple of the outputs.

    Args:
        program: A program without rank expressions (see `specialize`).
        groups: The rank's process groups, by the names that collectives use.
        device: Where ops that create tensors create them.
        in_place: Whether new content is written into stored inputs where that is safe; by default
            the inputs stay as they are.
        find_kernel: Returns the function that computes an op, by its kind.

    Raises:
        InvalidInputError: If there is no kernel for an op.
        RuntimeFailure: If a collective names a group that the rank isn't in.
    """
    sizes = used_sizes(program)
    where = torch.device(device)
    counted = counted_in(program)
    context = Context(program, groups, where, in_place, find_kernel, sizes, counted)
    return _Emitter(context).module("main")


class _Emitter:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.modules: dict[str, fx.GraphModule] = {}

    def module(self, name: str) -> fx.GraphModule:
        """Returns the module of a function, emitted the first time."""
        if name not in self.modules:
            program = self.context.program
            function = program.functions.get(name)
            if function is None:
                raise RuntimeFailure(f"program {program.name!r} has no function {name!r}")
            self.modules[name] = self._emit(function)
        return self.modules[name]

    def _emit(self, function: Function) -> fx.GraphModule:
        program, in_place = self.context.program, self.context.in_place
        body = Body(self.context, function, self.module)
        _add_inputs(body)
        guarded = in_place is not None and in_place.looks
        if function.aliases if function.name != "main" else in_place is not None:
            writes = plan_writes(program, body.storage, guarded=guarded, function=function)
            add_in_place(body, writes)
        else:
            body.add_all()
            body.look()
        body.graph.output(tuple(map(body.node, function.outputs)))
        try:
            name = as_identifier(function.name)
            return fx.GraphModule(body.submodules, body.graph, class_name=name)
        except SyntaxError as error:  # As of an argument that is called as a keyword of Python.
            raise RuntimeFailure(
                f"program {program.name!r}: {function.name} can't be written as code: {error}"
            ) from error


def _add_inputs(body: Body) -> None:
    function = body.function
    if function.name != "main":
        body.unpack(function.inputs)
        return
    # fx makes names of nodes unique, but not those of the arguments that are made of them.
    distinct: set[str] = set()
    for name in function.inputs:
        identifier = as_identifier(name)
        while identifier in distinct:
            identifier += "_"
        distinct.add(identifier)
        body.bind(name, body.graph.placeholder(identifier), None)
    body.take(body.context.sizes)
