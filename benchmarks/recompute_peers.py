"""What others would compute again in a training step, as plans for the same program.

Torch's partitioner (`torch.compile`'s min-cut with `activation_memory_budget`) gets the program as
a joint graph of ATen ops, and checkpointing per layer (`torch.utils.checkpoint` around each) keeps
what enters a layer. Both are read as sets of forward ops, so that one evaluator, and one executor,
compares them with ours.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar.ir.program import Arg, Op, Ref
from autopar.partition.recompute.tape import Tape
from autopar.partition.recompute.way import Way
from autopar.runtime.kernels.table import TORCH_DTYPES, to_torch


def layer_plan(tape: Tape) -> Way:
    """Returns the plan that keeps what enters each layer: the parts of lists of modules."""
    layers = [_layer(op) if op.phase == "forward" else "" for op in tape.ops]
    found = set()
    for at, layer in enumerate(layers):
        if layer and tape.again[at] is not None and not _leaves(tape, at, layers):
            found.add(at)
    return Way(frozenset(found))


def _layer(op: Op) -> str:
    match = re.match(r"(.*?\.\d+)\.", op.results[0])
    return match[1] if match else ""


def _leaves(tape: Tape, at: int, layers: list[str]) -> bool:
    """Whether a forward op outside of the layer reads a result of an op, through views or not."""
    readers = [reader for value in tape.makes[at] for reader in tape.readers[value]]
    return any(tape.early[reader] and layers[reader] != layers[at] for reader in readers)


class TorchPlans:
    """Plans of torch's partitioner.

    Args:
        tape: Of a program for one device.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def plan(self, budget: float) -> Way:
        """Returns the plan for a budget: 1 is what costs no products, 0 repeats everything."""
        module, outputs, ops = _joint(self.tape)
        with config.patch(activation_memory_budget=budget, cse=False):
            _, backward = min_cut_rematerialization_partition(
                module, None, "inductor", num_fwd_outputs=outputs
            )
        names = {node.name for node in backward.graph.nodes if node.op == "call_function"}
        again = (at for name, at in ops.items() if name in names and self.tape.early[at])
        return Way(frozenset(again))


def _joint(tape: Tape) -> tuple[fx.GraphModule, int, dict[str, int]]:
    """Returns the forward and backward ops as torch's partitioner wants them.

    The gradient of the loss becomes an input called a tangent.

    Returns:
        The module, the number of forward outputs, and the op by the node's name.
    """
    graph, mode = fx.Graph(), FakeTensorMode()
    nodes: dict[str, fx.Node] = {}
    ops: dict[str, int] = {}
    main = tape.function
    tangent = main.ops[0].results[0]
    for number, name in enumerate((*main.inputs, tangent)):
        kind = "tangents" if name == tangent else "primals"
        nodes[name] = graph.placeholder(f"{kind}_{number}")
        nodes[name].meta["val"] = _fake(tape, name, mode)
    for at, op in enumerate(main.ops):
        if op.phase == "update" or at == 0:
            continue
        node = _call(graph, op, nodes, mode)
        node.meta["partitioner_tag"] = f"is_{op.phase}"
        ops[node.name] = at
        ops.update({each.name: at for each in _results(graph, op, node, nodes)})
    computed = {name for op in main.ops if op.phase != "update" for name in op.results}
    read = {name for op in main.ops if op.phase == "update" for name in op.operands}
    early = {name for op in main.ops if op.phase == "forward" for name in op.results}
    wanted = [n for n in nodes if n in computed and n != tangent and n in read | {main.outputs[0]}]
    forward = [name for name in wanted if name in early]
    gradients = [name for name in wanted if name not in early]
    graph.output(tuple(nodes[name] for name in (*forward, *gradients)))
    return fx.GraphModule({}, graph), len(forward), ops


def _fake(tape: Tape, name: str, mode: FakeTensorMode) -> torch.Tensor:
    value = tape.function.values[name]
    with mode:
        return torch.empty(value.known_shape, dtype=TORCH_DTYPES[value.dtype])


def _call(graph: fx.Graph, op: Op, nodes: Mapping[str, fx.Node], mode: FakeTensorMode) -> fx.Node:
    namespace, name, overload = op.kind.split(".")
    target = getattr(getattr(getattr(torch.ops, namespace), name), overload)

    def value(arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return nodes[arg.name]
        return [value(item) for item in arg] if isinstance(arg, tuple) else to_torch(arg)

    given = {key: value(arg) for key, arg in op.args}
    args = []
    for argument in target._schema.arguments:
        if argument.kwarg_only or argument.name not in given:
            break
        args.append(given.pop(argument.name))
    node = graph.call_function(target, tuple(args), given)
    with mode:
        tensors = fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        node.meta["val"] = _computed(target, *tensors)
    return node


def _computed(target: Any, args: Any, kwargs: Any) -> Any:
    try:
        return target(*args, **kwargs)
    except (RuntimeError, ValueError):  # a view of what is contiguous by contract only
        return target(
            *(a.contiguous() if isinstance(a, torch.Tensor) else a for a in args), **kwargs
        )


def _results(
    graph: fx.Graph, op: Op, node: fx.Node, nodes: dict[str, fx.Node]
) -> Iterator[fx.Node]:
    if isinstance(node.meta["val"], torch.Tensor):
        nodes[op.results[0]] = node
        return
    present = [at for at, each in enumerate(node.meta["val"]) if each is not None]
    for at, name in zip(present, op.results, strict=False):
        picked = graph.call_function(operator.getitem, (node, at))
        picked.meta["val"] = node.meta["val"][at]
        picked.meta["partitioner_tag"] = node.meta["partitioner_tag"]
        nodes[name] = picked
        yield picked
