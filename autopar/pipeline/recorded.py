"""What a build remembers of its compilation: enough to compile its program again, and so to ask
afterwards what else it could have been.

    strategy: "data:0,tensor:1"
    memory_bytes: null
    seconds_limit: null
    placement: "identity"
    phases_apart: false
    activations: [["layers.*", "recompute"]]
    cluster:
      name: "h100"
      ...

The mesh and pins of values and ops stand in the build's program.
"""

from __future__ import annotations

import json
from textwrap import indent
from typing import Any

from autopar.annotate import ActivationPin
from autopar.cost.cluster_file import cluster_text, parse_cluster
from autopar.ir.build import OPTIONS, Build
from autopar.ir.errors import InvalidInputError
from autopar.mapping import Placement
from autopar.pipeline.options import CompileOptions


def recorded(options: CompileOptions) -> str:
    """Returns options as YAML, but for those that stand in the program."""
    known = {
        "strategy": options.strategy,
        "memory_bytes": options.memory_bytes,
        "seconds_limit": options.seconds_limit,
        "placement": options.placement,
        "phases_apart": options.phases_apart,
        "activations": [[pin.pattern, pin.choice] for pin in options.activations],
    }
    # JSON on one line is YAML too.
    lines = [f"{key}: {json.dumps(value)}" for key, value in known.items()]
    return "\n".join([*lines, "cluster:"]) + "\n" + indent(cluster_text(options.cluster), "  ")


def recorded_options(build: Build) -> CompileOptions:
    """Returns the options that a build was compiled with, without pins, which it lies by.

    Raises:
        InvalidInputError: If it remembers nothing, since an older autopar wrote it.
    """
    import yaml

    if not build.options:
        raise InvalidInputError(
            f"{build.path} has no {OPTIONS}, since an older autopar compiled it; compile the"
            " model again"
        )
    content = yaml.safe_load(build.options)
    place = f"{build.path / OPTIONS}"
    assert build.serial.mesh is not None
    return CompileOptions(
        mesh=build.serial.mesh,
        cluster=parse_cluster(content["cluster"], place),
        strategy=content["strategy"],
        placement=_placement(content.get("placement", "identity")),
        phases_apart=content.get("phases_apart", False),
        memory_bytes=content.get("memory_bytes"),
        seconds_limit=content.get("seconds_limit"),
        activations=tuple(
            ActivationPin.of(pattern, choice, place)
            for pattern, choice in content.get("activations", ())
        ),
    )


def _placement(known: Any) -> Placement:
    return known if isinstance(known, str) else tuple(known)
