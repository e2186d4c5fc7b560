"""The presets. A row is all that there is to say of one; what else knows presets reads it."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.completion.presets.expert import expert
from autopar.completion.presets.pinning import keep_whole, split_batch
from autopar.completion.presets.preset import Preset, Product
from autopar.completion.presets.sequence import context, sequence
from autopar.completion.presets.tensor import tensor
from autopar.completion.presets.zero import keep_split

PRESETS = (
    Preset("replicate", "nothing", keep_whole, product="nothing"),
    Preset(
        "data",
        "the batch",
        split_batch,
        aliases=("ddp",),
        splits_batch=True,
        product="batch",
        incumbent=0,
    ),
    Preset(
        "tensor",
        "the weights of matrix products and convolutions, as Megatron does",
        tensor,
        product="weight",
        incumbent=1,
    ),
    Preset("expert", "the experts of a mixture", expert, incumbent=7),
    Preset(
        "sequence",
        "with `tensor`, on the same axis: the sequence of what lies between its blocks",
        sequence,
        beside="tensor",
        turn=2,
        incumbent=4,
    ),
    Preset(
        "context",
        "the sequence of the inputs, through attention too",
        context,
        turn=1,
        product="sequence",
        incumbent=6,
    ),
    Preset(
        "zero1",
        "the batch; the optimizer's state",
        keep_split,
        turn=3,
        splits_batch=True,
        keeps=("optimizer_state",),
        incumbent=2,
    ),
    Preset(
        "zero2",
        "the batch; the optimizer's state and the gradients",
        keep_split,
        turn=3,
        splits_batch=True,
        keeps=("optimizer_state", "gradient"),
        incumbent=5,
    ),
    Preset(
        "fsdp",
        "the batch; the optimizer's state, the gradients and the parameters",
        keep_split,
        aliases=("zero3",),
        turn=3,
        splits_batch=True,
        keeps=("optimizer_state", "gradient", "parameter"),
        incumbent=3,
    ),
)

NAMES = tuple(preset.name for preset in PRESETS)

ALIASES = tuple(alias for preset in PRESETS for alias in preset.aliases)
"""Other names of presets."""

BY_NAME: Mapping[str, Preset] = {
    name: preset for preset in PRESETS for name in (preset.name, *preset.aliases)
}

KEEPING = tuple(sorted((p for p in PRESETS if p.keeps), key=lambda preset: -len(preset.keeps)))
"""The presets that keep something split, those that keep most of it first."""

INCUMBENTS = tuple(
    sorted(
        (p for p in PRESETS if p.incumbent is not None), key=lambda preset: preset.incumbent or 0
    )
)
"""What search tries on an axis, the usual ones first."""


def preset_of(product: Product) -> Preset:
    """Returns the preset after which plans are called that split this of their products."""
    return next(preset for preset in PRESETS if preset.product == product)
