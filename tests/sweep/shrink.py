"""Makes a library's default configuration small: sizes only, never what a model does."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig
from transformers.backbone_utils import BackboneConfigMixin

from tests.sweep.fields import default_fields, fields_of, is_written_down, said_beyond

VOCABULARY = 128
LAYERS = 2
POSITIONS = 64
EXPERTS = 4
QUERIES = 16


@dataclass
class Rung:
    """How much is shrunk.

    Attributes:
        widths: `named`: widths by what they are called; `heads`: two heads, as wide as before; a
            number: every width divided by it, with as many heads as before; None: widths stay.
        image: The size of images, or None where it stays.
        layers: Their largest number, or None where all stay.
        tokens: The ids that special tokens of large ids have got.
        cache: Whether what the library keeps for the next token is made.
        sections: What the three sections of rotary embeddings add up to, if code wants them so.
    """

    widths: str | int | None
    image: int | None
    layers: int | None = LAYERS
    tokens: dict[int, int] = field(default_factory=dict)
    cache: bool = True
    sections: int | None = None

    def __str__(self) -> str:
        return f"widths {self.widths}, images {self.image}, layers {self.layers}"


def rungs() -> list[Rung]:
    """Returns what is tried, the smallest first."""
    widths: tuple[str | int | None, ...] = ("named", 8, 4, None)
    found = [Rung(width, image) for image in (64, None) for width in widths]
    found.insert(2, Rung("heads", 64))
    more = [Rung(width, 64, layers) for layers in (4, 8, None) for width in ("named", 8)]
    return [
        *found,
        *(Rung(width, 64, cache=False) for width in ("named", 8)),
        *more,
        Rung("named", 128),
        Rung(8, 224),
        Rung("named", 256),
        Rung(4, None, None),
        Rung(None, None, None),
    ]


_WIDTH = re.compile(
    r"(^|_)(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|embedding_dim|dim|"
    r"embed_size|emb_dim|hidden_sizes|hidden_channels|embed_dims|projection_dim|projector_dim|"
    r"d_embed|width|model_dim|output_dim|input_dim|d_inner|channels|neck_hidden_sizes|"
    r"encoder_dim|decoder_dim|feature_size|hidden_features|conv_dim|out_channels|"
    r"out_hidden_size|embed_proj_dim|proj_size|projection_size|token_embed_dim|rank|lora_rank|"
    r"n_filters|num_filters|base_channels|stem_channels|upsample_groups|"
    r"hidden_dimension)$"
)
_INNER = re.compile(
    r"(intermediate_size|ffn_dim|ffn_hidden_size|inner_dim|n_inner|d_ff|mlp_dim|dim_feedforward|"
    r"intermediate_sizes|feedforward_dim|ffn_size|mlp_hidden_size|intermediate_dim|"
    r"filter_size)$"
)
_HEADS = re.compile(
    r"(num_attention_heads|num_heads|n_head|n_heads|attention_heads|encoder_attention_heads|"
    r"decoder_attention_heads|mamba_n_heads|nhead|num_q_heads)$"
)
_GROUPS = re.compile(r"(num_key_value_heads|num_kv_heads|n_kv_heads|num_key_value_groups)$")
_HEAD_DIM = re.compile(r"(head_dim|d_kv|attention_head_size|head_size|d_head|kv_channels|key_dim)$")
_QUERIES = re.compile(r"^(num_queries|num_object_queries)$")
_LAYERS = re.compile(
    r"(num_hidden_layers|num_layers|n_layer|n_layers|encoder_layers|decoder_layers|depth|"
    r"num_encoder_layers|num_decoder_layers|num_blocks|vision_layers|layers)$"
)
_VOCABULARY = re.compile(r"^(.*_)?(vocab_size|codebook_size|vocabulary_size)(_.*)?$")
_POSITIONS = re.compile(
    r"(max_position_embeddings|n_positions|max_source_positions|max_target_positions|"
    r"max_sequence_length|n_ctx|max_seq_len|max_length|seq_length|max_seq_length)$"
)
_IMAGE = re.compile(r"^(image_size|img_size|input_size|crop_size)$")
_EXPERTS = re.compile(
    r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$"
)
_CHOSEN = re.compile(r"^(num_experts_per_tok(en)?|moe_top_?k|top_k|moe_k|n_group|topk_group)$")
_TOKEN = re.compile(r"(_token_id|_token_index|_token_ids|_token|_id|_idx|_index)$")
_WEIGHTS_OF_LISTS = 8
_LARGE_IMAGE = 64


def shrink(
    config: PretrainedConfig, rung: Rung, sizes: Mapping[str, Any] | None = None
) -> PretrainedConfig:
    """Returns a configuration of smaller sizes.

    What a class derives from other sizes, it derives again.

    Args:
        config: With the library's sizes.
        rung: How they are shrunk.
        sizes: Those that are known already, of configurations inside it by dotted path.
    """
    kind, sizes = type(config), sizes or {}
    usual = default_fields(kind)
    arguments = {name: value for name, value in sizes.items() if "." not in name}
    for name, value in fields_of(config).items():
        if name in arguments:
            continue
        if isinstance(value, PretrainedConfig):
            arguments[name] = shrink(value, rung, _inside(sizes, name))
        elif usual is None or name not in usual or usual[name] != value:
            arguments[name] = _smaller(config, name, value, rung)
        elif is_written_down(kind, name) or name == "rope_parameters":
            small = _smaller(config, name, value, rung)
            if small != value:
                arguments[name] = small
    arguments |= {name: each for name, each in said_beyond(config).items() if name not in arguments}
    if isinstance(config, BackboneConfigMixin) and hasattr(config, "stage_names"):
        arguments |= _stages(config, arguments)
        arguments = {name: each for name, each in arguments.items() if name not in _DERIVED}
    found = kind(**arguments)
    if not rung.cache and hasattr(found, "use_cache"):
        found.use_cache = False
    return found


def _inside(sizes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns what is known of the sizes of a configuration inside another."""
    start = f"{name}."
    return {key.removeprefix(start): each for key, each in sizes.items() if key.startswith(start)}


_DERIVED = ("_out_features", "_out_indices")
"""What backbones keep of the stages that they return."""


def _stages(config: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns which stages a backbone returns: as many as before.

    Where the layers are the stages, there are as many layers at least.
    """
    count = len(config.stage_names) - 1
    wanted = [each % (count + 1) for each in config.out_indices]
    own = {each.name for each in dataclasses.fields(config)}
    if "out_indices" in arguments or "num_hidden_layers" not in own:
        return {"out_indices": wanted} | dict(arguments)
    first = [0] if 0 in wanted else []
    layers = max(arguments.get("num_hidden_layers", count), len(wanted) - len(first))
    rest = range(layers - len(wanted) + len(first) + 1, layers + 1)
    return {"num_hidden_layers": layers, "out_indices": [*first, *rest]}


_MASKED = re.compile(r"^mask_(time|feature)_prob$")


def without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    """Sets every probability of dropping or masking something to zero, in place."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            without_dropout(value)
        elif ("drop" in name or _MASKED.search(name)) and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def _smaller(config: PretrainedConfig, name: str, value: Any, rung: Rung) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str | float | dict):
        return _smaller_rope(name, value, rung)
    if _TOKEN.search(name):
        return _token(value, rung)
    if isinstance(value, int):
        return _smaller_number(config, name, value, rung)
    if isinstance(value, list | tuple) and value:
        items = list(value)
        if rung.layers is not None and len(items) in _layer_counts(config):
            items = _chosen(items, rung.layers)
        if all(isinstance(each, int) for each in items):
            items = _smaller_list(config, name, items, rung)
        return type(value)(items)
    return value


def _chosen(items: list[Any], count: int) -> list[Any]:
    """Returns so many of what layers have, each kind of text at least once if there is room."""
    if not isinstance(items[0], str):
        return items[:count]
    kinds = {each: items.index(each) for each in reversed(items)}
    first = sorted(kinds.values())[:count]
    rest = [at for at in range(len(items)) if at not in first][: count - len(first)]
    return [items[at] for at in sorted([*first, *rest])]


def _smaller_rope(name: str, value: Any, rung: Rung) -> Any:
    if rung.sections is not None and name == "rope_parameters":
        part = 3 * rung.sections // 8
        return (value or {}) | {"mrope_section": [rung.sections - 2 * part, part, part]}
    if isinstance(value, dict) and "mrope_section" in value and rung.widths not in (None, "heads"):
        whole = sum(value["mrope_section"])
        times = whole // 8 if rung.widths == "named" else rung.widths
        rest = [each // times for each in value["mrope_section"][1:]]
        return value | {"mrope_section": [whole // times - sum(rest), *rest]}
    return value


def _smaller_number(config: PretrainedConfig, name: str, value: int, rung: Rung) -> int:
    if _VOCABULARY.search(name) and "type_vocab" not in name:
        return min(value, VOCABULARY)
    if _IMAGE.search(name):
        return value if rung.image is None else min(value, rung.image)
    if _POSITIONS.search(name):
        return min(value, POSITIONS)
    if _EXPERTS.search(name):
        chosen = [each for key, each in fields_of(config).items() if _CHOSEN.search(key) and each]
        return min(value, max(EXPERTS, *(2 * each for each in chosen), 0))
    if _LAYERS.search(name):
        return value if rung.layers is None else min(value, rung.layers)
    if _QUERIES.search(name):
        return min(value, QUERIES)
    if rung.widths == "named":
        return _named(config, name, value)
    if rung.widths == "heads":
        return _of_two_heads(config, name, value)
    if isinstance(rung.widths, int) and (
        _WIDTH.search(name) or _INNER.search(name) or _HEAD_DIM.search(name)
    ):
        return max(value // rung.widths, 2) if value >= 2 * rung.widths else value
    return value


def _named(config: PretrainedConfig, name: str, value: int) -> int:
    if value <= LAYERS:
        return value
    if _HEADS.search(name):
        return min(value, 4)
    if _GROUPS.search(name):
        heads = [each for key, each in fields_of(config).items() if _HEADS.search(key)]
        return min(value, 4) if value in heads else min(value, 2)
    if _HEAD_DIM.search(name):
        return min(value, 16)
    if _INNER.search(name):
        return min(value, 128)
    return min(value, 64) if _WIDTH.search(name) else value


def _of_two_heads(config: PretrainedConfig, name: str, value: int) -> int:
    heads = [each for key, each in fields_of(config).items() if _HEADS.search(key)]
    whole = max((each for each in heads if isinstance(each, int)), default=1)
    if _HEADS.search(name) or _GROUPS.search(name):
        return min(value, 2)
    if _INNER.search(name):
        return min(value, 128)
    if whole > 2 and value % whole == 0 and _WIDTH.search(name):
        return value // whole * 2
    return value


def _smaller_list(config: PretrainedConfig, name: str, values: list[int], rung: Rung) -> list[int]:
    if _IMAGE.search(name):
        return values if rung.image is None else [min(each, rung.image) for each in values]
    if name in ("depths", "layer_depths", "num_blocks", "layers_per_stage"):
        return values if rung.layers is None else [min(each, rung.layers) for each in values]
    if rung.widths is None:
        return values
    times = rung.widths if isinstance(rung.widths, int) else _WEIGHTS_OF_LISTS
    if _WIDTH.search(name) or _INNER.search(name):
        return [max(each // times, 4) if each >= 2 * times else each for each in values]
    return values


def _layer_counts(config: PretrainedConfig) -> set[int]:
    return {
        value
        for name, value in fields_of(config).items()
        if _LAYERS.search(name) and isinstance(value, int) and value > LAYERS
    }


def _token(value: Any, rung: Rung) -> Any:
    if isinstance(value, list):
        return [_token(each, rung) for each in value]
    if not isinstance(value, int) or value < VOCABULARY - 1:
        return value
    known = rung.tokens
    return known.setdefault(value, VOCABULARY - 2 - len(known))
