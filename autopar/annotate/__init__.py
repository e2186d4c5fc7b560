"""What the user says: the mesh, and which tensors lie on it in which way.

    shard       marks a tensor within a torch model
    pins        pins tensors of a program by name pattern, from options or a YAML file
    mesh        the mesh option, and giving a program its mesh

A pin is `Value.dist` with an origin. Completion never changes what is annotated.
"""

from __future__ import annotations

from autopar.annotate.mesh import apply_mesh, parse_mesh
from autopar.annotate.pins import Annotations, Pin, apply_pins, load_annotations, parse_pin
from autopar.annotate.shard import ShardSpec, shard
from autopar.ir.mesh import ProcessMesh

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
