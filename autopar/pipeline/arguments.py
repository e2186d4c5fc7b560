"""What a user says of a compilation: arguments of `compile`, `compile_onnx` and `parallelize`.

Here stands what each of them means, and its default. The three functions spell them out again, for
`help()` and editors; tests compare. The command line has the same names, with dashes, so messages
name an argument as the user wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict

from autopar.annotate import MeshLike
from autopar.base.arguments import MAPPING, PATH, TEXT, WHOLE, Kind, expect, one_of
from autopar.cost import Cluster
from autopar.ir.devices import DEVICES, type_of
from autopar.ir.text.layouts import Entry
from autopar.mapping import Placement

if TYPE_CHECKING:
    import torch


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
        device: What the program is for: `cpu` or `cuda`, the type of the ranks' devices, or a
            `torch.device` of it; by default what the cluster's are. It has no op that only another
            device has a kernel for.
        placement: Which logical process each rank carries out: `identity`, its own number, by
            default; `auto`, the axis that communicates most on the fastest links; or ids.
        memory: What a device may hold at once, parameters, optimizer state and batch included:
            bytes, or text as `24GiB`. Activations that don't fit are computed again in the
            backward pass.
        time_limit: Wall time of a search, after which it takes the best plan so far; without
            one, the same program always gets the same plan.
        effort: How many times the usual work a search may do: 1 by default, where it takes no
            longer than capturing and compiling besides; more may find a faster plan, or prove that
            there is none.
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
    device: str | torch.device | None
    placement: Placement
    memory: str | int | None
    time_limit: float | None
    effort: float
    plan: str | Path | None
    activations: Mapping[str, str] | None


DEFAULTS: CompileArguments = {
    "mesh": None,
    "devices": None,
    "strategy": "",
    "shard": None,
    "cluster": "cpu",
    "device": None,
    "placement": "identity",
    "memory": None,
    "time_limit": None,
    "effort": 1.0,
    "plan": None,
    "activations": None,
}
"""What an argument is that isn't given, in the order in which signatures have them."""


class Spelling(Protocol):
    """Returns an argument, and what was given for it, as its user writes it."""

    def __call__(self, name: str, value: object = "", /) -> str:
        """Returns the text; without a value if there is nothing to say of it."""


def in_python(name: str, value: object = "", /) -> str:
    """Returns an argument as a Python caller writes it: `mesh=`, `devices=0`."""
    return f"{name}={value}"


def on_command_line(name: str, value: object = "", /) -> str:
    """Returns an argument as the command line has it: `--mesh`, `--devices 0`."""
    return f"--{name.replace('_', '-')} {value}".rstrip()


CLUSTER = one_of(str, Cluster, words="a name, a YAML file, or a Cluster")
_IDS = one_of(tuple, list, words="ids")

EXPECTED: Mapping[str, Kind] = {
    "devices": replace(WHOLE, words="a number of processes").or_none,
    "strategy": replace(TEXT, words="a text, as 'data:0,tensor:1'").or_none,
    "shard": replace(MAPPING, words="a dict, as {'*.weight': [-1, 'tp']}").or_none,
    "cluster": CLUSTER,
    "device": Kind(
        lambda value: value is None or type_of(value) in DEVICES,
        f"{' or '.join(map(repr, DEVICES))}, or a torch.device",
    ),
    "placement": Kind(
        lambda value: TEXT.fits(value) or _IDS.fits(value),
        "'identity', 'auto', or the process id of each rank, as (0, 2, 1, 3)",
    ),
    "memory": one_of(str, int, float, words="bytes, or a text as '24GiB'").or_none,
    "time_limit": one_of(int, float, words="a number of seconds").or_none,
    "effort": one_of(int, float, words="a number, as 10"),
    "plan": replace(PATH, words="the path of a file").or_none,
    "activations": replace(MAPPING, words="a dict, as {'layers.*': 'recompute'}").or_none,
}
"""The kinds of arguments that nothing else checks."""


def check_arguments(given: CompileArguments) -> None:
    """Refuses a Python caller's arguments of unfit types.

    Raises:
        InvalidInputError: If one has a type that means nothing.
    """
    for name, value in given.items():
        if name in EXPECTED:
            expect(EXPECTED[name], **{name: value})
