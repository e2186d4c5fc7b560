"""Families of ops that take alike long, which calibration measures one by one.

Ops of a product's family are measured by their operations, those of the others by the bytes that
they move. What isn't listed moves its data as an elementwise op does, if it computes no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autopar.ir.expr.expression import planned
from autopar.ir.rules.rule import TensorType

Types = Sequence[TensorType]

_NAMES: Mapping[str, str] = {
    "product": "mm addmm linear matmul mv addmv addmm_activation grouped_mm int_mm scaled_mm"
    " grouped_mm_fallback grouped_mm_fallback_backward add_product",
    "batched_product": "bmm baddbmm addbmm",
    "exponential": "exp exp2 expm1 sigmoid gelu gelu_backward silu silu_backward log log2 log10",
    "transcendental": "tanh softplus softplus_backward mish mish_backward erf erfc sin cos tan"
    " log1p elu log_sigmoid_forward logaddexp",
    "selection": "where masked_fill",
    "comparison": "eq ne lt le gt ge",
    "copy": "clone contiguous cat stack copy constant_pad_nd slice_scatter slice_backward"
    " select_backward repeat roll flip to_copy expand_copy permute_copy",
    "fill": "zeros zeros_like full full_like ones ones_like fill nll_loss_backward"
    " nll_loss2d_backward new_zeros new_full new_ones",
    "reduction": "sum mean amax amin max min prod std var var_mean std_mean linalg_vector_norm"
    " linalg__powsum norm any all argmax argmin",
    "softmax": "softmax masked_softmax logsumexp",
    "safe_softmax": "safe_softmax",
    "softmax_backward": "softmax_backward_data masked_softmax_backward",
    "log_softmax": "log_softmax",
    "log_softmax_backward": "log_softmax_backward_data",
    "normalization": "native_layer_norm layer_norm fused_rms_norm rms_norm native_group_norm",
    "normalization_backward": "native_layer_norm_backward fused_rms_norm_backward"
    " native_group_norm_backward",
    "batch_norm": "native_batch_norm_legit_functional batch_norm_with_update_functional"
    " native_batch_norm native_batch_norm_legit batch_norm_no_update",
    "batch_norm_backward": "native_batch_norm_backward batch_norm_backward",
    "pooling": "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d"
    " max_pool_with_indices",
    "pooling_backward": "max_pool2d_with_indices_backward max_pool3d_with_indices_backward"
    " avg_pool2d_backward avg_pool3d_backward max_pool_backward",
    "embedding": "embedding",
    "embedding_backward": "embedding_dense_backward",
    "index": "index unsafe_index index_select",
    "index_write": "index_put unsafe_index_put index_add index_copy",
    "gather": "gather take",
    "scatter": "scatter scatter_add scatter_reduce",
    "optimizer": "fused_adam fused_adamw fused_sgd fused_adagrad",
    "random": "rand randn randint bernoulli bernoulli_p dropout exponential native_dropout",
}

ELEMENTWISE = "elementwise"
"""The family of everything else."""

_FAMILY: Mapping[str, str] = {
    name: family for family, names in _NAMES.items() for name in names.split()
}


def _convolution(types: Types, weight: int) -> str:
    """Returns the kind of a convolution, by the shape of its weight: outputs, inputs, window."""
    _, inputs, *window = types[weight].shape
    if inputs == 1:
        return "depthwise_convolution"
    return "pointwise_convolution" if all(size == 1 for size in window) else "convolution"


_ATTENTION = (
    "scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_flash_attention",
    "scaled_dot_product_efficient_attention",
    "scaled_dot_product_cudnn_attention",
    "attention",
)

NARROW = 48
"""Up to this width of heads, attention takes longer for its exponentials than for its products."""


def _attention(types: Types, query: int) -> str:
    """Returns the kind of attention, by the width of its heads."""
    return "narrow_attention" if planned(types[query].shape[-1]) <= NARROW else "attention"


_BY_SHAPE: Mapping[str, Callable[[Types], str]] = {
    "convolution": lambda types: _convolution(types, 1),
    "convolution_backward": lambda types: f"{_convolution(types, 2)}_backward",
    **dict.fromkeys(_ATTENTION, lambda types: _attention(types, 0)),
    **dict.fromkeys(
        (f"{name}_backward" for name in _ATTENTION),
        lambda types: f"{_attention(types, 1)}_backward",
    ),
}
"""Ops whose family their operands say."""

PRODUCTS = (
    "product",
    "batched_product",
    *(
        f"{name}{direction}"
        for direction in ("", "_backward")
        for name in (
            "attention",
            "narrow_attention",
            "convolution",
            "pointwise_convolution",
            "depthwise_convolution",
        )
    ),
)
"""The families whose work is operations; that of all others is bytes."""

FAMILIES = (*dict.fromkeys((*_NAMES, *PRODUCTS)), ELEMENTWISE)
"""All families."""


def family_of(kind: str, types: Types) -> str:
    """Returns the family of an op.

    Args:
        kind: Its kind, as `aten._softmax.default`; neither the overload matters nor underscores
            around its name.
        types: The types of its operands, and then of its results.
    """
    name = _name_of(kind).strip("_")
    by_shape = _BY_SHAPE.get(name)
    return _FAMILY.get(name, ELEMENTWISE) if by_shape is None else by_shape(types)


def is_in_place(kind: str) -> bool:
    """Returns whether an op writes over operands, and so takes no memory for its results."""
    name = _name_of(kind)
    return name.endswith("_") or _FAMILY.get(name.strip("_")) == "optimizer"


def _name_of(kind: str) -> str:
    return kind.split(".")[1] if "." in kind else kind
