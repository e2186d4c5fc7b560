"""Which OpInfos are not judged, by category, and which are judged in part."""

from __future__ import annotations

from collections.abc import Mapping

EXCLUDED: Mapping[str, tuple[str, ...]] = {
    "the shape of the result depends on values": (
        "argwhere",
        "bincount",
        "masked_select",
        "nonzero",
        "unique",
        "unique_consecutive",
    ),
    "the result is no dense tensor": (
        "allclose",
        "broadcast_shapes",
        "equal",
        "item",
        "sparse.mm.reduce",
        "sparse.sampled_addmm",
        "to_sparse",
    ),
    "it reads memory outside of its operands": ("as_strided.partial_views",),
    "it doesn't run on the CPU": (
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
        "nn.functional.batch_norm.without_cudnn",
        "torch.ops.aten._efficient_attention_forward",
        "torch.ops.aten._flash_attention_forward",
    ),
}
"""Why OpInfos are left out, and which."""

WITHOUT_IN_PLACE = frozenset(
    ("float_power", *(f"polygamma.polygamma_n_{order}" for order in range(5)))
)
"""OpInfos whose in-place variant is not judged: it refuses float32, or PyTorch can't capture it."""

UNDEFINED = frozenset(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
)
"""OpInfos whose results hold whatever was in memory: shapes and dtypes are judged."""


def excluded(name: str) -> str:
    """Returns why an OpInfo is not judged; empty if it is."""
    return next((reason for reason, names in EXCLUDED.items() if name in names), "")
