"""What the user says: the mesh, and which tensors lie on it in which way.

    mark        marks a tensor within a torch model
    pins        pins tensors of a program by name pattern, from options or a YAML file
    mesh        the mesh option, and giving a program its mesh

A pin is `Value.dist` with an origin. Completion never changes what is annotated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autopar.annotate.mesh import apply_mesh, parse_mesh
from autopar.annotate.pins import Annotations, Pin, apply_pins, load_annotations, parse_pin
from autopar.annotate.spec import ShardSpec
from autopar.ir.mesh import ProcessMesh

if TYPE_CHECKING:
    from autopar.annotate.mark import shard

__all__ = [
    "Annotations",
    "Pin",
    "ProcessMesh",
    "ShardSpec",
    "apply_mesh",
    "apply_pins",
    "load_annotations",
    "parse_mesh",
    "parse_pin",
    "shard",
]


def __getattr__(name: str) -> Any:
    if name != "shard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Only those who mark torch models pay for the import of torch.
    from autopar.annotate.mark import shard

    return shard
