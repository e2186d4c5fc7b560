"""What the user says: the mesh, and which tensors lie on it in which way.

    mark        marks a tensor within a torch model: its layout, memory, mask
    call        marks the operands and results of a call
    chunk_pins  says what is computed in parts, by name pattern
    activation_pins   says what becomes of activations, by name pattern
    keep        says it of a part of a torch model
    offload_pins      says which stored tensors wait in the host's memory
    stage       puts a part of a model into a pipeline stage
    unexecuted  refuses what is recorded, but not carried out yet
    paddle      the spellings of Paddle's first annotation interface
    pins        pins tensors of a program by name pattern
    choices     pins ops
    annotation_file   reads such pins, and whole plans, from YAML
    plan_text   writes plans as such files; layouts as text are `autopar/ir/text/layouts.py`
    same        which values of two captures of a model are the same
    mesh        meshes as users give them, and giving a program its mesh

A pin is `Value.dist` with an origin. Completion never changes what is annotated.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autopar.annotate.activation_pins import ActivationPin, apply_activations
from autopar.annotate.annotation_file import Annotations, load_annotations
from autopar.annotate.choices import OpPin, apply_op_pins, pinned_results
from autopar.annotate.chunk_pins import ChunkPin
from autopar.annotate.mesh import MeshLike, apply_mesh, as_mesh, parse_mesh
from autopar.annotate.offload_pins import (
    OffloadPin,
    marked_offload,
    offloaded,
    without_offload,
)
from autopar.annotate.pins import (
    Pin,
    apply_pins,
    apply_pins_of,
    parse_pin,
    pinned_names,
)
from autopar.annotate.stages import apply_stages
from autopar.annotate.unexecuted import refuse_unexecuted
from autopar.ir.mesh import ProcessMesh

if TYPE_CHECKING:
    from autopar.annotate.call import shard_op
    from autopar.annotate.keep import activations
    from autopar.annotate.mark import chunk, offload, shard, shard_mask
    from autopar.annotate.stage import pipeline_stage

__all__ = [
    "ActivationPin",
    "Annotations",
    "ChunkPin",
    "MeshLike",
    "OffloadPin",
    "OpPin",
    "Pin",
    "ProcessMesh",
    "activations",
    "apply_activations",
    "apply_mesh",
    "apply_op_pins",
    "apply_pins",
    "apply_pins_of",
    "apply_stages",
    "as_mesh",
    "chunk",
    "load_annotations",
    "marked_offload",
    "offload",
    "offloaded",
    "parse_mesh",
    "parse_pin",
    "pinned_names",
    "pinned_results",
    "pipeline_stage",
    "refuse_unexecuted",
    "shard",
    "shard_mask",
    "shard_op",
    "without_offload",
]

_HOMES = {
    "activations": "keep",
    "chunk": "mark",
    "offload": "mark",
    "pipeline_stage": "stage",
    "shard": "mark",
    "shard_mask": "mark",
    "shard_op": "call",
}
"""What marks torch models. Only those who use it pay for the import of torch."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"autopar.annotate.{_HOMES[name]}"), name)
    # From now on it is found without this function, which tracers need not understand.
    globals()[name] = found
    return found
