"""How ONNX operators are expressed with torch functions, in tables by family.

An operator that onnx defines in terms of others needs no row: the walk inlines that body. There is
one where the body takes more ops, as it has no fused kernels, where an older opset has no body, or
where the body computes something else.
"""

from __future__ import annotations

from collections.abc import Mapping

from autopar.frontend.onnx.ops.classical import TABLE as CLASSICAL
from autopar.frontend.onnx.ops.elementwise.activation import TABLE as ACTIVATION
from autopar.frontend.onnx.ops.elementwise.arithmetic import TABLE as ELEMENTWISE
from autopar.frontend.onnx.ops.elementwise.quantization import TABLE as QUANTIZATION
from autopar.frontend.onnx.ops.image.boxes import TABLE as BOXES
from autopar.frontend.onnx.ops.image.convolution import TABLE as CONVOLUTION
from autopar.frontend.onnx.ops.image.pooling import TABLE as POOLING
from autopar.frontend.onnx.ops.image.resize import TABLE as RESIZE
from autopar.frontend.onnx.ops.image.vision import TABLE as VISION
from autopar.frontend.onnx.ops.legacy import find_legacy
from autopar.frontend.onnx.ops.linear import TABLE as LINEAR
from autopar.frontend.onnx.ops.ngram import TABLE as NGRAM
from autopar.frontend.onnx.ops.normalization import TABLE as NORMALIZATION
from autopar.frontend.onnx.ops.random import TABLE as RANDOM
from autopar.frontend.onnx.ops.recurrent import TABLE as RECURRENT
from autopar.frontend.onnx.ops.reduction import TABLE as REDUCTION
from autopar.frontend.onnx.ops.refused import TABLE as REFUSED
from autopar.frontend.onnx.ops.shape.create import TABLE as CREATE
from autopar.frontend.onnx.ops.shape.indexing import TABLE as INDEXING
from autopar.frontend.onnx.ops.shape.layout import TABLE as LAYOUT
from autopar.frontend.onnx.ops.shape.sequence import TABLE as SEQUENCE
from autopar.frontend.onnx.ops.signal import TABLE as SIGNAL
from autopar.frontend.onnx.ops.training import TABLE as TRAINING
from autopar.frontend.onnx.trace.values import Translation

TABLES: tuple[Mapping[str, Translation], ...] = (
    ACTIVATION,
    BOXES,
    CONVOLUTION,
    CREATE,
    ELEMENTWISE,
    INDEXING,
    LAYOUT,
    LINEAR,
    NGRAM,
    NORMALIZATION,
    POOLING,
    QUANTIZATION,
    RANDOM,
    RECURRENT,
    REDUCTION,
    RESIZE,
    SEQUENCE,
    VISION,
    SIGNAL,
    REFUSED,
)
DEFAULT_DOMAIN: Mapping[str, Translation] = {
    op_type: translation for table in TABLES for op_type, translation in table.items()
}
DOMAINS: Mapping[str, Mapping[str, Translation]] = {
    "": DEFAULT_DOMAIN,
    "ai.onnx.ml": CLASSICAL,
    "ai.onnx.preview.training": TRAINING,
}
_STANDARD = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training")


def find_translation(domain: str, op_type: str, opset: int) -> Translation | None:
    """Returns the translation of an operator as an opset defines it, or None if it has none."""
    legacy = None if domain else find_legacy(op_type, opset)
    return legacy if legacy is not None else DOMAINS.get(domain, {}).get(op_type)


def is_known_domain(domain: str) -> bool:
    """Tells whether operators of this domain mean something to onnx or to us."""
    return domain in DOMAINS or domain in _STANDARD
