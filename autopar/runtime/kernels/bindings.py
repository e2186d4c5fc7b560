"""Torch's own Python functions in the place of ops: they do the same, and are called faster.

An op of `torch.ops` takes its arguments through its schema, which costs one to four microseconds,
more than a small kernel itself. `torch.add` and its like are generated for their arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autopar.ir.ops.shape.view import RESHAPES
from autopar.runtime.kernels.table import Kernel, kernel

_NAMES = """
    abs.default cos.default erf.default exp.default isnan.default log.default logical_and.default
    logical_not.default logical_or.default neg.default reciprocal.default relu.default rsqrt.default
    sigmoid.default sin.default sqrt.default tanh.default
    add.Tensor clamp.default div.Tensor masked_fill.Scalar masked_fill.Tensor maximum.default
    minimum.default mul.Tensor pow.Tensor_Scalar pow.Tensor_Tensor rsub.Scalar sub.Tensor where.self
    eq.Scalar eq.Tensor ge.Scalar ge.Tensor gt.Scalar gt.Tensor le.Scalar le.Tensor lt.Scalar
    lt.Tensor ne.Scalar ne.Tensor
    addmm.default baddbmm.default bmm.default convolution.default mm.default
    _log_softmax.default _softmax.default amax.default amin.default argmax.default cumsum.default
    mean.dim sum.dim_IntList var.correction
    cat.default clone.default permute.default select.int stack.default transpose.int
    unsqueeze.default
    embedding.default full.default gather.default index_select.default
"""

BINDINGS: Mapping[str, Kernel] = {
    **{f"aten.{name}": getattr(torch, name.partition(".")[0]) for name in _NAMES.split()},
    **dict.fromkeys(RESHAPES, torch.reshape),
    "aten.expand.default": torch.Tensor.expand,
    "aten.gelu.default": torch._C._nn.gelu,
    "aten.silu.default": torch._C._nn.silu,
}
"""Functions by the kind of op that they call, and no other; the first operand goes by position."""


def fast_kernel(kind: str) -> Kernel:
    """Returns what computes an op; call it with the op's leading arguments by position.

    Raises:
        InvalidInputError: If there is no kernel.
    """
    return BINDINGS.get(kind) or kernel(kind)
