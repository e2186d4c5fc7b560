"""Programs as text, JSON or a graph for Graphviz: of a build's rank, or of any single .pb file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, replace
from pathlib import Path

from autopar.base.errors import UNKNOWN, InvalidInputError
from autopar.base.units import counted
from autopar.cost.summary import WEIGHT_ROLES
from autopar.ir.builds.files import read_build
from autopar.ir.collectives import is_collective
from autopar.ir.deployment import Deployment
from autopar.ir.expr.at_rank import program_at
from autopar.ir.expr.expression import Expr
from autopar.ir.layout import Layout, Origin
from autopar.ir.program import Arg, DType, Op, Program, Ref, Value
from autopar.ir.serde import (
    content_of,
    deployment_from_bytes,
    manifest_from_bytes,
    program_from_bytes,
)
from autopar.ir.text import print_deployment, print_program


def show_serial(build: Path, form: str, brief: bool = False) -> str:
    """Returns the completed program of a build, with all attributes.

    Args:
        build: The build folder.
        form: `text`, `json` or `dot`.
        brief: Whether to leave out source locations, and why a layout was chosen.

    Raises:
        InvalidInputError: If there is no such build.
    """
    return show_program(read_build(build).serial, form, brief)


def show_rank(build: Path, rank: int, form: str, brief: bool = False) -> str:
    """Returns the program that a rank runs, its rank expressions resolved.

    Args:
        build: The build folder.
        rank: The rank.
        form, brief: See `show_serial`.

    Raises:
        InvalidInputError: If there is no such build or rank.
    """
    deployment = read_build(build).deployment
    if not 0 <= rank < deployment.world_size:
        raise InvalidInputError(
            f"--rank {rank}: {build} is for {counted(deployment.world_size, 'rank')},"
            f" 0 to {deployment.world_size - 1}"
        )
    program = program_at(deployment.program_of(rank), deployment.coords_of(rank))
    shown = show_program(program, form, brief)
    return shown if form != "text" else f"{_rank_header(deployment, rank)}\n{shown}"


def show_file(path: Path, form: str, brief: bool = False) -> str:
    """Returns the content of a single .pb file: a program, a rank table or a manifest.

    Args:
        path: The file.
        form, brief: See `show_serial`.

    Raises:
        InvalidInputError: If the file is none of these, or can't be shown in this format.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"can't read {path}: {error.strerror}") from error
    content = content_of(data, str(path))
    if content == "program":
        return show_program(program_from_bytes(data, str(path)), form, brief)
    if form == "dot":
        raise InvalidInputError(f"{path} is a {content}; only programs have a --format dot")
    if content == "deployment":
        ranks = deployment_from_bytes(data, (), str(path))
        return print_deployment(ranks).rstrip("\n") if form == "text" else _ranks_json(ranks)
    manifest = manifest_from_bytes(data, str(path))
    if form == "json":
        return json.dumps(asdict(manifest), indent=1)
    lines = [f"{manifest.model}, compiled by autopar {manifest.autopar_version}"]
    lines.extend(f"  {file.sha256[:16]}  {file.bytes:>12}  {file.path}" for file in manifest.files)
    return "\n".join(lines)


def show_program(program: Program, form: str, brief: bool = False) -> str:
    """Returns a program as `text`, `json` or `dot`; see `show_serial`."""
    renderers: Mapping[str, Callable[[Program], str]] = {
        "text": print_program,
        "json": _to_json,
        "dot": _to_dot,
    }
    if not brief:
        return renderers[form](program).rstrip("\n")
    shown = renderers[form](without_reasons(program)).rstrip("\n")
    return _without_scopes(program, shown) if form == "text" else shown


def without_reasons(program: Program) -> Program:
    """Returns a program without source locations and without the details of origins."""
    functions = {}
    for name, function in program.functions.items():
        values = {
            key: replace(value, loc=UNKNOWN, origin=_kind_alone(value.origin))
            for key, value in function.values.items()
        }
        ops = tuple(replace(op, loc=UNKNOWN, origin=_kind_alone(op.origin)) for op in function.ops)
        functions[name] = replace(function, values=values, ops=ops)
    return replace(program, functions=functions)


def _without_scopes(program: Program, text: str) -> str:
    """Returns a program's text without the scopes that nearly all of its names begin with.

    Exporters put the path of modules into every name, with `/` for activations and `.` for
    weights: without what they share, lines are much shorter.
    """
    names = {name for function in program.functions.values() for name in function.values}
    weights = {port.name for port in program.signature.inputs if port.role in WEIGHT_ROLES}
    activations = {name for name in names - weights if name.startswith("/")}
    scopes = [_scope(weights, "."), _scope(activations, "/")]
    for scope in filter(None, scopes):
        renamed = {name.removeprefix(scope) for name in names}
        if len(renamed) == len(names):
            text = f"# left out of names: {scope}\n{text.replace(f'%{scope}', '%')}"
    return text


def _scope(names: Set[str], separator: str) -> str:
    """Returns the longest scope that at least nine of ten names begin with; "" if there is none."""
    counts = Counter(
        name[: at + 1] for name in names for at, char in enumerate(name) if char == separator
    )
    common = [scope for scope, count in counts.items() if count >= 0.9 * len(names)]
    return max(common, key=len, default="")


def _kind_alone(origin: Origin | None) -> Origin | None:
    return None if origin is None else Origin(origin.kind)


def _rank_header(deployment: Deployment, rank: int) -> str:
    entry = deployment.ranks[rank]
    coords = ", ".join(f"{axis}={at}" for axis, at in deployment.coords_of(rank).items())
    lines = [f"# rank {rank} of {deployment.world_size}: process {entry.process_id} at {coords}"]
    for name, lists in deployment.groups.items():
        # A group of a slice of the mesh is without the other ranks.
        for members in (each for each in lists if rank in each):
            lines.append(f"# group {name}: ranks {', '.join(map(str, members))}")
    return "\n".join(lines)


def _ranks_json(deployment: Deployment) -> str:
    ranks = [
        {
            "rank": rank,
            "program": entry.program,
            "process_id": entry.process_id,
            "coords": dict(deployment.coords_of(rank)),
        }
        for rank, entry in enumerate(deployment.ranks)
    ]
    return json.dumps({"ranks": ranks, "groups": deployment.groups}, indent=1)


def _to_json(program: Program) -> str:
    functions = {
        name: {
            "inputs": [_value_json(function.values[item]) for item in function.inputs],
            "outputs": list(function.outputs),
            "ops": [_op_json(op, function.values) for op in function.ops],
        }
        for name, function in program.functions.items()
    }
    return json.dumps(
        {"name": program.name, "level": program.level, "functions": functions}, indent=1
    )


def _value_json(value: Value) -> dict[str, object]:
    shown: dict[str, object] = {
        "name": value.name,
        "dtype": value.dtype,
        "shape": [size if isinstance(size, int) else str(size) for size in value.shape],
        "role": value.role,
    }
    if value.dist is not None:
        shown["dist"] = _layout_json(value.dist)
        shown["origin"] = str(value.origin)
    return shown


def _layout_json(layout: Layout) -> dict[str, object]:
    mapping = [list(entry) if isinstance(entry, tuple) else entry for entry in layout.dims_mapping]
    shown: dict[str, object] = {
        "process_mesh": layout.mesh.axis_sizes(),
        "dims_mapping": mapping,
        "partial": dict(layout.partial),
        "text": str(layout),
    }
    if layout.mask is not None:
        shown["mask"] = list(layout.mask)
    if layout.offload:
        shown["offload"] = layout.offload
    return shown


def _op_json(op: Op, values: Mapping[str, Value]) -> dict[str, object]:
    return {
        "kind": op.kind,
        "args": {name: _arg_json(arg) for name, arg in op.args},
        "results": [_value_json(values[name]) for name in op.results],
        "stage": op.stage,
        "microbatch": op.microbatch,
        "phase": op.phase,
        "loc": str(op.loc),
    }


def _arg_json(arg: Arg) -> object:
    if isinstance(arg, Ref):
        return f"%{arg.name}"
    if isinstance(arg, DType):
        return arg.name
    if isinstance(arg, tuple):
        return [_arg_json(item) for item in arg]
    if isinstance(arg, Expr) or (isinstance(arg, float) and not math.isfinite(arg)):
        return str(arg)  # JSON has no infinities.
    return arg


def _to_dot(program: Program) -> str:
    main = program.main
    lines = ["digraph program {", "  node [shape=box, fontname=monospace];"]
    producer = {name: f"op{at}" for at, op in enumerate(main.ops) for name in op.results}
    for at, name in enumerate(main.inputs):
        producer[name] = f"in{at}"
        lines.append(f"  in{at} [label={_quoted(name)}, shape=ellipse];")
    for at, op in enumerate(main.ops):
        color = ", style=filled, fillcolor=orange" if is_collective(op.kind) else ""
        lines.append(f"  op{at} [label={_quoted(op.kind)}{color}];")
        lines.extend(
            f"  {producer[name]} -> op{at} [label={_quoted(_type(main.values[name]))}];"
            for name in op.operands
        )
    for at, name in enumerate(main.outputs):
        lines.append(f"  out{at} [label={_quoted(name)}, shape=ellipse];")
        lines.append(f"  {producer[name]} -> out{at};")
    return "\n".join([*lines, "}"])


def _type(value: Value) -> str:
    return f"{value.dtype}{value.dist or [str(size) for size in value.shape]}".replace("'", "")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
