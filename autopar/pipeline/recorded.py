"""What a build remembers of its compilation: enough to compile its program again, and so to ask
afterwards what else it could have been.

    strategy: "data:0,tensor:1"
    memory: null
    time_limit: null
    effort: 1.0
    placement: "identity"
    device: "cpu"
    phases_apart: false
    pipeline: ""
    schedule: "1f1b"
    activations: [["layers.*", "recompute"]]
    offload: ["exp_avg/embed.weight"]
    chunks: [["lm_head", null, 8]]
    cluster:
      name: "h100"
      ...

The mesh and pins of values and ops stand in the build's program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import Any

from autopar.annotate import ActivationPin, ChunkPin, OffloadPin
from autopar.base.errors import InvalidInputError
from autopar.base.yaml_tree import parse_yaml
from autopar.cost.cluster import Cluster
from autopar.cost.cluster_file import parse_description
from autopar.cost.cluster_text import cluster_text
from autopar.ir.builds.files import OPTIONS, Build
from autopar.ir.devices import CPU, DEVICES
from autopar.ir.memory.transfers import EITHER
from autopar.mapping import Placement
from autopar.mapping.placement import NAMED
from autopar.partition.pipeline.schedules import DEFAULT_SCHEDULE
from autopar.pipeline.options import CompileOptions


def recorded(options: CompileOptions) -> str:
    """Returns options as YAML, but for those that stand in the program."""
    known = {key: value for key, value in _known(options).items() if key != "widths" or value}
    # JSON on one line is YAML too.
    lines = [f"{key}: {json.dumps(value)}" for key, value in known.items()]
    return "\n".join([*lines, "cluster:"]) + "\n" + indent(cluster_text(options.cluster), "  ")


def _known(options: CompileOptions) -> dict[str, Any]:
    return {
        "strategy": options.strategy,
        "memory": options.memory_bytes,
        "time_limit": options.time_limit,
        "effort": options.effort,
        "placement": options.placement,
        "device": options.device,
        "phases_apart": options.phases_apart,
        "pipeline": options.pipeline,
        "schedule": options.schedule,
        "widths": list(options.widths),
        "activations": [[pin.pattern, pin.choice] for pin in options.activations],
        "offload": None if options.offload is None else list(options.offloaded or ()),
        "chunks": None
        if options.chunks is None
        else [[pin.pattern, pin.dim, pin.parts] for pin in options.chunks],
        "update": options.update,
    }


def recorded_options(build: Build) -> CompileOptions:
    """Returns the options that a build was compiled with, without pins, which it lies by.

    Raises:
        InvalidInputError: If it remembers nothing, since an older autopar wrote it.
    """
    if not build.options:
        raise InvalidInputError(
            f"{build.path} has no {OPTIONS}, since an older autopar compiled it; compile the"
            " model again"
        )
    place = f"{build.path / OPTIONS}"
    root = parse_yaml(build.options.encode(), place, "options")
    content = root.content() if root is not None else None
    if not isinstance(content, dict) or build.serial.mesh is None:
        raise _unreadable(place, "it has no options")
    cluster = Cluster(**parse_description(content.get("cluster"), place))
    mesh = build.serial.mesh
    if strange := content.keys() - {*_known(CompileOptions(mesh, cluster)), "cluster"}:
        raise _unreadable(place, f"it has {', '.join(sorted(map(str, strange)))}")
    return CompileOptions(
        mesh=mesh,
        cluster=cluster,
        strategy=_field(content, "strategy", place, str),
        placement=_placement(content.get("placement", "identity"), place),
        device=_device(content.get("device", CPU), place),
        phases_apart=_field(content, "phases_apart", place, bool) or False,
        memory_bytes=_field(content, "memory", place, int),
        time_limit=_field(content, "time_limit", place, int, float),
        effort=_field(content, "effort", place, int, float) or 1.0,
        pipeline=_field(content, "pipeline", place, str) or "",
        schedule=_field(content, "schedule", place, str) or DEFAULT_SCHEDULE,
        widths=_widths(content.get("widths"), place),
        activations=tuple(_activations(content.get("activations"), place)),
        offload=_offload(content.get("offload"), place),
        chunks=_chunks(content.get("chunks"), place),
        update=_field(content, "update", place, str) or EITHER,
    )


def _field(content: Mapping[str, Any], key: str, place: str, *types: type) -> Any:
    """Returns an option of one of these types, or None if there is none."""
    value = content.get(key)
    if value is None or type(value) in types:
        return value
    raise _unreadable(place, f"{key} is {value!r}")


def _widths(known: Any, place: str) -> tuple[int, ...]:
    if known is None or (isinstance(known, list) and all(type(each) is int for each in known)):
        return tuple(known or ())
    raise _unreadable(place, f"widths is {known!r}")


def _placement(known: Any, place: str) -> Placement:
    if isinstance(known, str) and known in NAMED:
        return known
    if isinstance(known, list) and all(type(rank) is int for rank in known):
        return tuple(known)
    raise _unreadable(place, f"placement is {known!r}")


def _device(known: Any, place: str) -> str:
    if known in DEVICES:
        return str(known)
    raise _unreadable(place, f"device is {known!r}")


def _activations(known: Any, place: str) -> Iterator[ActivationPin]:
    if known is not None and not isinstance(known, list):
        raise _unreadable(place, f"activations is {known!r}")
    for pin in known or ():
        if not isinstance(pin, list) or [type(word) for word in pin] != [str, str]:
            raise _unreadable(place, f"activations has {pin!r}")
        pattern, choice = pin
        yield ActivationPin.from_choice(pattern, choice, place)


def _offload(known: Any, place: str) -> tuple[OffloadPin, ...] | None:
    if known is None:
        return None
    if not isinstance(known, list) or not all(isinstance(pattern, str) for pattern in known):
        raise _unreadable(place, f"offload is {known!r}")
    return tuple(OffloadPin(pattern, place) for pattern in known)


def _chunks(known: Any, place: str) -> tuple[ChunkPin, ...] | None:
    if known is None:
        return None
    found = []
    for pin in known if isinstance(known, list) else [known]:
        if not isinstance(pin, list) or len(pin) != 3 or type(pin[2]) is not int:
            raise _unreadable(place, f"chunks has {pin!r}")
        pattern, dim, parts = pin
        if not isinstance(pattern, str) or type(dim) not in (int, type(None)):
            raise _unreadable(place, f"chunks has {pin!r}")
        found.append(ChunkPin(pattern, parts, dim, place))
    return tuple(found)


def _unreadable(place: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{place} isn't what autopar writes: {why[:200]}; compile the model again"
    )
