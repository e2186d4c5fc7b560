"""What a user says of a compilation: the keyword arguments that `compile` and `compile_onnx` share.

The command line says the same, so messages name an argument as the user wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypedDict

from autopar.annotate import MeshLike
from autopar.annotate.mapping_text import Entry
from autopar.cost import Cluster
from autopar.ir.errors import InvalidInputError, near_misses
from autopar.mapping import Placement


class CompileArguments(TypedDict, total=False):
    """How a program is to be compiled.

    Attributes:
        mesh: The processes: a mesh, a torch DeviceMesh, or text as `2x4` or `dp=2,tp=4`;
            or sizes, as `8` or `(2, 4)`.
        devices: In the place of a mesh: how many processes; the fastest shape is searched.
        strategy: `auto`, or "", to search for what is fastest; presets as `data:0,tensor:1`;
            `none` or None for nothing but pins and marks.
        shard: Pins: a dims_mapping by name pattern, such as a parameter's name in the state dict.
        cluster: The hardware: a profile's name, a YAML file, or a Cluster; `cpu` by default.
        placement: Which logical process each rank carries out: `identity`, its own number, by
            default; `auto`, the axis that communicates most on the fastest links; or ids.
        memory: What a device may hold at once, parameters, optimizer state and batch included:
            bytes, or text as `24GiB`. Activations that don't fit are computed again in the
            backward pass.
        seconds_limit: Wall time of a search, after which it takes the best plan so far; without
            one, the same program always gets the same plan.
        plan: A file with pins, or a plan that `autopar plan` wrote.
        activations: What becomes of activations until the backward pass reads them, by pattern of
            names of modules or values: `save`, `offload` to the host's memory, or `recompute`,
            which of a module is all but its outputs. Of what isn't named, `memory` decides.
    """

    mesh: MeshLike | None
    devices: int | None
    strategy: str | None
    shard: Mapping[str, Sequence[Entry]] | None
    cluster: str | Cluster
    placement: Placement
    memory: str | int | None
    seconds_limit: float | None
    plan: str | Path | None
    activations: Mapping[str, str] | None


class Spelling(Protocol):
    """Returns an argument, and what was given for it, as its user writes it."""

    def __call__(self, name: str, value: object = "", /) -> str:
        """Returns the text; without a value if there is nothing to say of it."""


def in_python(name: str, value: object = "", /) -> str:
    """Returns an argument as a Python caller writes it: `mesh=`, `devices=0`."""
    return f"{name}={value}"


def on_command_line(name: str, value: object = "", /) -> str:
    """Returns an argument as the command line has it: `--mesh`, `--devices 0`."""
    option = {"seconds_limit": "--time-limit", "plan": "--annotations"}.get(name, f"--{name}")
    return f"{option} {value}".rstrip()


EXPECTED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "devices": ((int,), "a number of processes"),
    "strategy": ((str,), "a text, as 'data:0,tensor:1'"),
    "shard": ((Mapping,), "a dict, as {'*.weight': [-1, 'tp']}"),
    "cluster": ((str, Cluster), "a name, a YAML file, or a Cluster"),
    "memory": ((str, int, float), "bytes, or a text as '24GiB'"),
    "seconds_limit": ((int, float), "a number of seconds"),
    "plan": ((str, Path), "the path of a file"),
    "activations": ((Mapping,), "a dict, as {'layers.*': 'recompute'}"),
}
"""The types of arguments that nothing else checks, and how to say them; all but `cluster` may be
None."""


def check_arguments(given: Mapping[str, object]) -> None:
    """Refuses a Python caller's arguments that there are none of, and those of unfit types.

    Raises:
        TypeError: If there is no such argument.
        InvalidInputError: If one has a type that means nothing.
    """
    known = CompileArguments.__annotations__
    for name, value in given.items():
        if name not in known:
            hint = near_misses(name, known)
            raise TypeError(f"got an unexpected keyword argument {name!r}{hint}")
        types, words = EXPECTED.get(name, ((object,), ""))
        fits = isinstance(value, types) and (object in types or not isinstance(value, bool))
        if not fits and (value is not None or name == "cluster"):
            raise InvalidInputError(f"{in_python(name, repr(value))}: give {words}")
