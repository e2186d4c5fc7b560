"""Prints programs and rank tables in the text form."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from autopar.base.errors import Loc
from autopar.ir.deployment import Deployment
from autopar.ir.fixed import index_text
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import LEVELS, Example, Function, Op, Port, Program, Signature, Value
from autopar.ir.serde.write import functions_in_order, values_in_order
from autopar.ir.text.print_parts import (
    Context,
    mesh_ref,
    named_args,
    op_call,
    op_clauses,
    port_clauses,
    port_line,
    relation_line,
    size_line,
    value_clauses,
)
from autopar.ir.text.signature import default_box, derived_signature, make_port
from autopar.ir.text.words import IDENTIFIER, integers, kind, quote, value_name, word
from autopar.ir.used_sizes import declared_sizes

MAX_ALIGNED = 56
"""Left-hand sides up to this width are padded to one column; longer ones stick out."""

MAX_ALIAS = 16
"""Longest short name of a source file, without the number that tells it from others."""

MAX_LISTED_RANKS = 64


def print_program(program: Program) -> str:
    """Returns the text form of a program, from which `parse_program` makes an equal one.

    Args:
        program: Any program, also one that doesn't verify (a reference to a value that doesn't
            exist prints, but doesn't parse).
    """
    context = Context(program.mesh, _mesh_names(program), _file_aliases(program))
    ports = _inline_ports(program)
    blocks = ["\n".join(_header(program, context))]
    if ports is None:
        blocks.append("\n".join(_signature(program.signature)))
    for function in functions_in_order(program):
        is_main = function.name == "main"
        lines = _FunctionPrinter(function, context, ports if is_main and ports else {}).lines()
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def print_op(op: Op, values: Mapping[str, Value], context: Context | None = None) -> str:
    """Returns an op as one line, for messages.

    Args:
        op: The op.
        values: Values of its function; results that are missing print without a type.
        context: Of the program; by default, meshes are left unnamed.
    """
    context = context or Context(mesh=op.dist.mesh if op.dist else None)
    results = _results(op, values, context)
    return " ".join((*((results, "=") if results else ()), _right_side(op, context)))


def message_context(program: Program) -> Context:
    """Returns the context in which `print_op` prints ops of a program for messages."""
    return Context(program.mesh, _mesh_names(program), origins=False)


def _results(op: Op, values: Mapping[str, Value], context: Context) -> str:
    return ", ".join(_result(name, values, op, context) for name in op.results)


def _result(name: str, values: Mapping[str, Value], op: Op, context: Context) -> str:
    if name not in values:
        return value_name(name)
    value = values[name]
    clauses = value_clauses(value, context, op=op)
    return f"{value_name(name)}: {' '.join(clauses)}"


def _right_side(op: Op, context: Context) -> str:
    return " ".join((op_call(op), *op_clauses(op, context)))


_NO_OP = Op("", (), ())
"""The producer of values that nothing produces."""

Ports = Mapping[tuple[str, int], tuple[str, ...]]
"""Clauses of a port, by ("input" or "output", position)."""


class _FunctionPrinter:
    def __init__(self, function: Function, context: Context, ports: Ports) -> None:
        self._function = function
        self._context = context
        self._ports = ports

    def lines(self) -> Iterator[str]:
        function = self._function
        yield f"func {kind(function.name)} {{"
        yield from self._inputs()
        yield from self._ops()
        for value in values_in_order(function):
            if value.name not in function.inputs and value.name not in self._produced():
                yield f"  value {self._declared(value, op=_NO_OP)}"
        for output, source in function.aliases:
            yield f"  alias {value_name(output)} -> {value_name(source)}"
        yield from self._return()
        yield "}"

    def _produced(self) -> frozenset[str]:
        return frozenset(name for op in self._function.ops for name in op.results)

    def _inputs(self) -> Iterator[str]:
        values = self._function.values
        found = [(at, name) for at, name in enumerate(self._function.inputs) if name in values]
        width = max((len(word(values[name].role)) for _, name in found), default=0)
        for at, name in found:
            clauses = self._ports.get(("input", at), ())
            yield f"  {word(values[name].role):{width}} {self._declared(values[name], clauses)}"

    def _declared(self, value: Value, port: Iterable[str] = (), op: Op | None = None) -> str:
        clauses = value_clauses(value, self._context, op=op, port=port)
        return f"{value_name(value.name)}: {' '.join(clauses)}"

    def _ops(self) -> Iterator[str]:
        values, context = self._function.values, self._context
        results = [_results(op, values, context) for op in self._function.ops]
        width = max((len(text) for text in results if len(text) <= MAX_ALIGNED), default=0)
        for op, text in zip(self._function.ops, results, strict=True):
            equals = f"{text:{width}} = " if text else ""
            yield f"  {equals}{_right_side(op, context)}"

    def _return(self) -> Iterator[str]:
        outputs = [
            " ".join((value_name(name), *self._ports.get(("output", at), ())))
            for at, name in enumerate(self._function.outputs)
        ]
        line = ", ".join(outputs)
        if len(line) > 90:
            line = ",\n         ".join(outputs)
        yield f"  return {line}".rstrip()


def _header(program: Program, context: Context) -> Iterator[str]:
    # An unknown level stands in quotes, as a name does.
    named = program.name or program.level not in LEVELS
    yield " ".join(("program", *((quote(program.name),) if named else ()), word(program.level)))
    yield from (f"file {alias} = {quote(file)}" for file, alias in context.files.items())
    told: set[ProcessMesh] = set()
    for mesh in _meshes(program):
        yield from _mesh_lines(mesh, context, told)
    yield from map(size_line, declared_sizes(program))
    yield from (relation_line(each, context) for each in program.relations)
    yield from _example_lines(program.example)


def _example_lines(example: Example | None) -> Iterator[str]:
    if example is None:
        yield "example unknown"
        return
    if example.given:
        yield f"given({named_args(example.given)})"
    if example.defaults:
        yield f"defaults({named_args(example.defaults)})"
    if example.arguments:
        yield f"arguments({', '.join(map(quote, example.arguments))})"


def _mesh_lines(mesh: ProcessMesh, context: Context, told: set[ProcessMesh]) -> Iterator[str]:
    """Yields the declarations of a mesh and, before it, of its parents, unless told already."""
    if mesh in told:
        return
    told.add(mesh)
    if mesh.parent is not None:
        yield from _mesh_lines(mesh.parent, context, told)
    name = context.meshes.get(mesh)
    if mesh.fixed and mesh.parent is not None:
        if mesh == context.mesh:
            axis, index = mesh.fixed[-1]
            yield f"mesh {mesh_ref(mesh.parent, context)}[{axis}={index_text(index)}]"
        return
    axes = ", ".join(f"{axis}={size}" for axis, size in mesh.axis_sizes().items())
    ids = "" if mesh.ids == range(mesh.size) else f" ids [{integers(mesh.ids)}]"
    parent = f" parent {mesh_ref(mesh.parent, context)}" if mesh.parent is not None else ""
    yield f"mesh {'' if mesh == context.mesh else f'@{name} '}{axes}{ids}{parent}"


def _meshes(program: Program) -> Iterator[ProcessMesh]:
    """Yields every mesh that a program mentions, the program's own first."""
    if program.mesh is not None:
        yield program.mesh
    for function in functions_in_order(program):
        for value in values_in_order(function):
            if value.dist is not None:
                yield value.dist.mesh
        for op in function.ops:
            if op.dist is not None:
                yield op.dist.mesh


def _mesh_names(program: Program) -> dict[ProcessMesh, str]:
    """Returns the names of meshes other than the program's."""
    names: dict[ProcessMesh, str] = {}
    for mesh in dict.fromkeys(_meshes(program)):
        root: ProcessMesh | None = mesh
        while root is not None:
            if root != program.mesh and not root.fixed and root not in names:
                names[root] = f"m{len(names) + 1}"
            root = root.parent
    return names


def _file_aliases(program: Program) -> dict[str, str]:
    """Returns a short name for each source file that is mentioned more than once."""
    uses = Counter(loc.file for loc in _locs(program) if loc.file)
    aliases: dict[str, str] = {}
    for file, count in uses.items():
        if count > 1:
            stem = re.sub(r"\W+", "_", os.path.splitext(os.path.basename(file))[0])
            stem = stem if IDENTIFIER.fullmatch(stem) else f"file_{stem}"
            stem = stem[:MAX_ALIAS].rstrip("_")
            taken = set(aliases.values())
            numbered = (f"{stem}_{number}" for number in range(2, len(taken) + 3))
            aliases[file] = next(name for name in (stem, *numbered) if name not in taken)
    return aliases


def _locs(program: Program) -> Iterator[Loc]:
    for function in functions_in_order(program):
        yield from (value.loc for value in values_in_order(function))
        yield from (op.loc for op in function.ops)
    yield from (each.loc for each in program.relations)


def _inline_ports(program: Program) -> Ports | None:
    """Returns what inputs and outputs of main must say so that parsing derives the signature.

    None if that can't say it, so that the signature must be spelled out.
    """
    if program.signature == derived_signature(program):
        return {}
    if "main" not in program.functions:
        return None
    main = program.main
    sides = (
        ("input", main.inputs, program.signature.inputs),
        ("output", main.outputs, program.signature.outputs),
    )
    found: dict[tuple[str, int], tuple[str, ...]] = {}
    for side, names, ports in sides:
        if tuple(port.name for port in ports) != names or any(n not in main.values for n in names):
            return None
        for at, port in enumerate(ports):
            value = main.values[port.name]
            label = None if port.label == port.name else port.label
            box = None if port.box == default_box(value, program.level) else port.box
            # A `return` has no room for these.
            given = side == "input"
            fill, aliases = (port.fill, port.aliases) if given else (None, ())
            options = port.options if given else ()
            likely = make_port(value, program.level, label, box, fill, aliases, port.part, options)
            if likely != port:
                return None
            found[side, at] = tuple(port_clauses(label, box, fill, aliases, port.part, options))
    return found


def _signature(signature: Signature) -> Iterator[str]:
    if signature == Signature():
        yield "signature {}"
        return
    yield "signature {"
    sides: tuple[tuple[str, tuple[Port, ...]], ...]
    sides = (("input", signature.inputs), ("output", signature.outputs))
    for side, ports in sides:
        yield from (f"  {side} {port_line(port)}" for port in ports)
    yield "}"


def print_deployment(deployment: Deployment) -> str:
    """Returns a rank table for reading: long tables are cut, and there is no way back."""
    count, axes = deployment.world_size, deployment.axes
    lines = [f"{count} ranks, programs: {len(deployment.programs)}", ""]
    lines.append("  ".join(("rank  program  process", *axes)))
    for rank, item in enumerate(deployment.ranks[:MAX_LISTED_RANKS]):
        head = f"{rank:>4}  {item.program:>7}  {item.process_id:>7}"
        coords = zip(axes, item.coords, strict=True)
        lines.append("  ".join((head, *(f"{at:>{len(axis)}}" for axis, at in coords))))
    if count > MAX_LISTED_RANKS:
        lines.append(f" ...  and {count - MAX_LISTED_RANKS} more")
    for name, lists in sorted(deployment.groups.items()):
        shown = " ".join(f"[{integers(members)}]" for members in lists[:MAX_LISTED_RANKS])
        more = len(lists) - MAX_LISTED_RANKS
        lines.append("")
        lines.append(f"group {name}: {shown}" + (f" and {more} more" if more > 0 else ""))
    return "\n".join(lines) + "\n"
