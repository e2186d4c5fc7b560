"""Is a parsed model well-formed? Names, order, schemas and tensors, in plain Python.

Collects every problem. What is well-formed may still be something that we can't express; the
import finds that out node by node.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from autopar.frontend.onnx.model.cycles import find_cycle
from autopar.frontend.onnx.model.expansion import check_expansion, subgraphs
from autopar.frontend.onnx.model.external import ExternalData
from autopar.frontend.onnx.model.problems import Problems
from autopar.frontend.onnx.model.schema import check_node, function_key, normal_domain
from autopar.frontend.onnx.model.tensors import check_sparse, check_tensor
from autopar.frontend.onnx.ops import is_known_domain

Names = ChainMap[str, None]
"""The names that are defined in a graph, then those of the graphs around it."""

_MAX_DEPTH = 24


@dataclass(frozen=True, slots=True)
class _Context:
    model: ModelProto
    files: ExternalData
    problems: Problems
    functions: frozenset[tuple[str, str, str]]


def check_model(
    model: ModelProto, files: ExternalData, oldest_opset: int, problems: Problems
) -> None:
    """Notes everything that is malformed in `model`."""
    opsets = _check_opsets(model.opset_import, oldest_opset, "", problems)
    keys = [function_key(function) for function in model.functions]
    context = _Context(model, files, problems, frozenset(keys))
    for key in sorted(key for key, count in Counter(keys).items() if count > 1):
        problems.add("", f"the function {'::'.join(key[:2])} is defined more than once")
    for function in model.functions:
        _check_function(function, oldest_opset, context)
    check_expansion(model, problems)
    if not model.graph.output:
        problems.add("", "the graph has no outputs")
    _check_graph(model.graph, ChainMap(), opsets, context, "", 0)
    files.conclude(problems)


def node_label(node: NodeProto, index: int) -> str:
    """Returns what a node is called in messages: its name, or its operator and position."""
    return node.name or f"{node.op_type}#{index}"


def _check_opsets(
    imports: Iterable[onnx.OperatorSetIdProto], oldest: int, where: str, problems: Problems
) -> dict[str, int]:
    newest = onnx.defs.onnx_opset_version()
    opsets: dict[str, int] = {}
    for entry in imports:
        domain = normal_domain(entry.domain)
        if opsets.get(domain, entry.version) != entry.version:
            problems.add(where, f"imports two opsets of domain {domain or 'ai.onnx'!r}")
        opsets[domain] = entry.version
    version = opsets.get("")
    if not opsets:
        problems.add(where, "says no opset", "the file is damaged, or made by a broken exporter")
    elif version is not None and not oldest <= version <= newest:
        advice = "onnx.version_converter converts old models"
        if version > newest:
            advice = "upgrade onnx, or export with an older opset"
        problems.add(where, f"opset {version}; {oldest} to {newest} are supported", advice)
        opsets[""] = min(max(version, oldest), newest)
    return opsets


def _check_function(function: FunctionProto, oldest: int, context: _Context) -> None:
    where = f"function {function.name}"
    opsets = _check_opsets(function.opset_import, oldest, where, context.problems)
    defined: Names = ChainMap(dict.fromkeys(function.input))
    if len(defined) != len(function.input):
        context.problems.add(where, "two inputs have the same name")
    _check_nodes(function.node, defined, opsets, context, where, 0)
    for name in function.output:
        if name not in defined:
            context.problems.add(where, f"nothing produces its output {name!r}")


def _check_graph(
    graph: GraphProto,
    outer: Names,
    opsets: dict[str, int],
    context: _Context,
    where: str,
    depth: int,
) -> None:
    problems = context.problems
    if depth > _MAX_DEPTH:
        problems.add(where, f"graphs are nested more than {_MAX_DEPTH} deep")
        return
    inputs = [value.name for value in graph.input]
    _check_unique(where, "input", inputs, problems)
    stored = [tensor.name for tensor in graph.initializer]
    stored += [sparse.values.name for sparse in graph.sparse_initializer]
    _check_unique(where, "initializer", stored, problems)
    for tensor in graph.initializer:
        check_tensor(f"initializer {tensor.name!r}", tensor, context.files, problems)
    for sparse in graph.sparse_initializer:
        name = f"sparse initializer {sparse.values.name!r}"
        check_sparse(name, sparse, context.files, problems)
    own = dict.fromkeys([*inputs, *stored])
    for name in sorted(name for name in own if name in outer):
        problems.add(where, f"the name {name!r} is already taken in an outer graph")
    known = outer.new_child(own)
    _check_nodes(graph.node, known, opsets, context, where, depth)
    for value in graph.output:
        if value.name not in known:
            problems.add(where, f"nothing produces the output {value.name!r}")


def _check_unique(where: str, kind: str, names: Sequence[str], problems: Problems) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            problems.add(where, f"an {kind} without a name")
        elif name in seen:
            problems.add(where, f"two {kind}s are called {name!r}")
        seen.add(name)


def _check_nodes(
    nodes: Sequence[NodeProto],
    known: Names,
    opsets: dict[str, int],
    context: _Context,
    where: str,
    depth: int,
) -> None:
    """Checks nodes in order, adding to `known` the names that they define."""
    problems = context.problems
    producers = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    late: set[str] = set()
    for index, node in enumerate(nodes):
        label = f"node {node_label(node, index)!r}"
        label = f"{where}: {label}" if where else label
        late |= _check_reads(label, node, known, producers, late, problems)
        _check_operator(label, node, opsets, context)
        for attribute in node.attribute:
            _check_attribute(label, attribute, context)
        for graph in subgraphs(node):
            inner = f"{label}, graph {graph.name or '?'!r}"
            _check_graph(graph, known, opsets, context, inner, depth + 1)
        for name in node.output:
            if name and name in known:
                problems.add(label, f"defines {name!r}, which is already defined")
            if name:
                known[name] = None
    if late:
        _report_order(nodes, producers, where, problems)


def _check_reads(
    label: str,
    node: NodeProto,
    known: Names,
    producers: dict[str, int],
    reported: set[str],
    problems: Problems,
) -> set[str]:
    """Returns the names that the node reads before the node that defines them has run."""
    late = set()
    for name in node.input:
        if not name or name in known or name in reported:
            continue
        if name in producers:
            late.add(name)
            problems.add(label, f"reads {name!r} before it is defined")
        else:
            problems.add(label, f"reads {name!r}, which nothing defines")
    return late


def _report_order(
    nodes: Sequence[NodeProto], producers: dict[str, int], where: str, problems: Problems
) -> None:
    edges = {
        at: [producers[name] for name in node.input if name in producers]
        for at, node in enumerate(nodes)
    }
    cycle = find_cycle(edges)
    if cycle:
        path = " -> ".join(node_label(nodes[at], at) for at in reversed(cycle))
        problems.add(where, f"the graph has a cycle: {path}")
    else:
        problems.add(where, "its nodes aren't in topological order", "sort them")


def _check_operator(label: str, node: NodeProto, opsets: dict[str, int], context: _Context) -> None:
    domain = normal_domain(node.domain)
    key = (domain, node.op_type, node.overload)
    if key in context.functions:
        if domain not in opsets:
            context.problems.add(label, f"no opset of its domain {domain!r} is imported")
        return
    if not is_known_domain(domain):
        context.problems.add(
            label,
            f"{node.op_type} is of the unknown domain {domain!r}",
            "an ONNX file doesn't say what it computes: give it a function body in the model, or"
            " compile the torch module, whose custom ops are kept",
        )
    elif domain not in opsets:
        context.problems.add(label, f"no opset of its domain {domain or 'ai.onnx'!r} is imported")
    else:
        check_node(label, node, domain, opsets[domain], context.problems)


def _check_attribute(label: str, attribute: AttributeProto, context: _Context) -> None:
    where = f"{label}, attribute {attribute.name!r}"
    if attribute.type == AttributeProto.TENSOR:
        check_tensor(where, attribute.t, context.files, context.problems)
    elif attribute.type == AttributeProto.TENSORS:
        for tensor in attribute.tensors:
            check_tensor(where, tensor, context.files, context.problems)
    elif attribute.type == AttributeProto.SPARSE_TENSOR:
        check_sparse(where, attribute.sparse_tensor, context.files, context.problems)
    elif attribute.type == AttributeProto.SPARSE_TENSORS:
        context.problems.add(where, "lists of sparse tensors aren't supported")
