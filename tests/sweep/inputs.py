"""Makes a batch for a model's `forward`, from the names of its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from tests.sweep.fields import value_of

BATCH = 4
LENGTH = 12
SAMPLES = 8000


@dataclass(frozen=True)
class Form:
    """What the names of arguments leave open.

    Attributes:
        length: Of sequences.
        frames: Of videos; 0 for images without such a dimension.
        labels: The form of labels: `none`, `tokens`, `classes`, or `pixels`.
        samples: Of audio.
        image: The size of images, or their height and width.
        optional: Whether arguments with defaults are given too.
        placeholders: Tokens of each text that stand for an image.
        grid: Whether images come as patches, with a grid that says how they lie.
        text: Whether there is text alone.
        truths: Whether masks are truth values, not numbers.
        shapes: Of inputs whose shapes aren't as usual, by name.
    """

    length: int = LENGTH
    frames: int = 0
    labels: str = "none"
    samples: int = SAMPLES
    image: int | tuple[int, int] = 64
    optional: bool = True
    placeholders: int = 0
    grid: bool = False
    text: bool = False
    truths: bool = False
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()


def forms(model: nn.Module, config: PretrainedConfig) -> Iterator[Form]:
    """Returns the forms that may fit, the likeliest first."""
    image = size(config, ("image_size", "img_size", "input_size"), 64)
    start = Form(image=tuple(image[:2]) if isinstance(image, list | tuple) else int(image))
    first = _likely_labels(type(model).__name__)
    rest = [each for each in ("tokens", "classes", "pixels", "none") if each != first]
    names = inspect.signature(model.forward).parameters
    start = replace(start, grid=bool({"image_grid_thw", "grid_thw"} & set(names)))
    has_labels = "labels" in names
    for labels in [first, *rest] if has_labels else ["none"]:
        yield replace(start, labels=labels)
        yield replace(start, labels=labels, optional=False)
        if "pixel_values" in names:
            yield replace(start, labels=labels, frames=size(config, ("num_frames",), 2))
        if "input_features" in names:
            yield replace(start, labels=labels, samples=6400)
        if "input_ids" in names and len(_MEDIA & set(names)) > 0:
            yield replace(start, labels=labels, text=True)


def _likely_labels(name: str) -> str:
    if "Segmentation" in name or "Depth" in name:
        return "pixels"
    if "Token" in name or "LM" in name or "Generation" in name or "CTC" in name:
        return "tokens"
    return "classes" if "Classification" in name else "tokens"


Make = Callable[[PretrainedConfig, "Form", torch.Generator], Tensor | None]
"""Makes an input of a configuration, a form, and a generator; None where there is none."""


def make_batch(
    model: nn.Module,
    config: PretrainedConfig,
    form: Form,
    number: int,
    given: Mapping[str, Make] | None = None,
    alone: bool = False,
) -> dict[str, Tensor]:
    """Returns the batch of a step.

    Args:
        model: Whose arguments' names say what they are like.
        config: The model's.
        form: What the names leave open.
        number: The step's.
        given: What is made otherwise than the names say.
        alone: Whether nothing else is given.
    """
    draw = torch.Generator().manual_seed(number)
    given = given or {}
    found = {} if alone else _by_names(model, config, form, draw, given)
    for name, maker in given.items():
        made = maker(config, form, draw)
        if made is not None:
            found[name] = made
    second = _second_ways(found) - given.keys()
    return {name: each for name, each in found.items() if name not in second}


def _by_names(
    model: nn.Module,
    config: PretrainedConfig,
    form: Form,
    draw: torch.Generator,
    given: Mapping[str, Make],
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, parameter in inspect.signature(model.forward).parameters.items():
        if name in given:
            continue
        needed = parameter.default is inspect.Parameter.empty
        maker = _MAKERS.get(name) or (_guessed(name) if needed else None)
        if maker is None or not (needed or form.optional or name in _USUAL):
            continue
        if form.text and name in _MEDIA:
            continue
        if name == "labels" and form.labels == "none":
            continue
        made = maker(config, form, draw)
        if made is not None:
            shape = dict(form.shapes).get(name)
            found[name] = made if shape is None else torch.randn(*shape, generator=draw)
    return found


def _second_ways(found: Mapping[str, Tensor]) -> set[str]:
    """Returns the inputs that say in another way what others say."""
    second = set()
    if "input_values" in found:
        second.add("input_features")
    if "pixel_values" in found:
        second |= {"pixel_values_videos", "inputs_embeds"}
    if "input_ids" in found:
        second.add("inputs_embeds")
    elif "inputs_embeds" not in found and "hidden_states" not in found:
        second.add("attention_mask")
    if "decoder_input_ids" in found and "labels" in found and "input_ids" in found:
        second.add("decoder_input_ids")
    return second


_MEDIA = {"pixel_values", "pixel_values_videos", "input_features", "image_grid_thw"}
"""What models of text take besides."""

_USUAL = ("input_ids", "pixel_values", "input_values", "input_features", "labels", "image_grid_thw")


def size(config: PretrainedConfig, names: tuple[str, ...], otherwise: Any) -> Any:
    """Returns the first of some attributes that a configuration, or one inside it, has."""
    for name in names:
        found = value_of(config, name)
        if found is not None:
            return found
    for inner in list(vars(config).values()):
        if isinstance(inner, PretrainedConfig):
            found = size(inner, names, None)
            if found is not None:
                return found
    return otherwise


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """Returns the configuration of what reads a model's texts."""
    try:
        return config.get_text_config()
    except (AttributeError, ValueError):  # the library doesn't know either
        return config


def _ids(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    count = size(text_config(config), ("vocab_size",), None)
    count = int(size(config, ("vocab_size",), 100) if count is None else count)
    found = torch.randint(3, max(4, min(count, 100)), (BATCH, form.length), generator=draw)
    token = size(config, ("image_token_id", "image_token_index", "audio_token_id"), None)
    if isinstance(token, int):
        found = found.masked_fill(found == token, 3)
    if not form.placeholders or token is None:
        return found
    return torch.cat([found[:, :2], torch.full((BATCH, form.placeholders), token), found[:, 2:]], 1)


def _kinds(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    found = torch.zeros(BATCH, form.length + form.placeholders, dtype=torch.long)
    found[:, 2 : 2 + form.placeholders] = 1
    return found


def _ones(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    kind = torch.bool if form.truths else torch.long
    return torch.ones(BATCH, form.length + form.placeholders, dtype=kind)


def _frames(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    """Returns which frames of the features of audio count: all."""
    shape = _features(config, form, draw).shape
    bins = int(size(config, BINS, 80))
    return torch.ones(BATCH, shape[2] if shape[1] == bins else shape[1], dtype=torch.long)


def _zeros(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    return torch.zeros(BATCH, form.length + form.placeholders, dtype=torch.long)


def _trues(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    return torch.ones(BATCH, form.length, dtype=torch.bool)


def _positions(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    return torch.arange(form.length).expand(BATCH, -1).clone()


def _pixels(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    channels = int(size(config, ("num_channels", "in_channels", "in_chans"), 3))
    if form.grid:
        patch = int(size(config, ("patch_size",), 14))
        times = int(size(config, ("temporal_patch_size", "patch_temporal"), 1))
        return torch.randn(BATCH * 16, channels * times * patch * patch, generator=draw)
    frames = (form.frames,) if form.frames else ()
    return torch.randn(BATCH, *frames, channels, *_area(form), generator=draw)


def _area(form: Form) -> tuple[int, int]:
    return form.image if isinstance(form.image, tuple) else (form.image, form.image)


def _video(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    return _pixels(config, replace(form, frames=form.frames or 2), draw)


def _audio(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    bins = size(config, ("num_mel_bins", "n_mels"), None)
    if bins is not None and size(config, ("conv_kernel",), None) is None:
        length = size(config, ("max_length",), 64)
        return torch.randn(BATCH, int(length), int(bins), generator=draw)
    channels = size(config, ("audio_channels",), None)
    shape = (BATCH, form.samples) if channels is None else (BATCH, int(channels), form.samples)
    return torch.randn(*shape, generator=draw)


BINS = ("input_feat_size", "num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel")


def _features(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    bins = size(config, BINS, 80)
    positions = size(config, ("max_source_positions",), None)
    if positions is not None and form.samples == SAMPLES:
        return torch.randn(BATCH, int(bins), 2 * int(positions), generator=draw)
    return torch.randn(BATCH, 64, int(bins), generator=draw)


def _labels(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    if form.labels == "tokens":
        return _ids(config, form, draw)
    count = int(getattr(config, "num_labels", 2))
    shape = (BATCH,) if form.labels == "classes" else (BATCH, *_area(form))
    return torch.randint(0, max(count, 1), shape, generator=draw)


def _class(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (BATCH,), generator=draw)


def _boxes(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    low = torch.randint(0, 20, (BATCH, form.length, 2), generator=draw)
    return torch.cat([low, low + torch.randint(1, 20, low.shape, generator=draw)], -1)


def _hidden(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    if form.grid and "text" not in config.model_type:
        return _pixels(config, form, draw)
    width = int(size(config, ("hidden_size", "d_model", "embed_dim"), 64))
    return torch.randn(BATCH, form.length, width, generator=draw)


def _values(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    channels = size(config, ("num_input_channels",), None)
    shape = (BATCH, _past(config)) if channels is None else (BATCH, _past(config), int(channels))
    return torch.randn(*shape, generator=draw)


def _past(config: PretrainedConfig) -> int:
    """Returns how many values of a time series are known."""
    length = int(size(config, ("context_length", "seq_length"), 32))
    return length + max(size(config, ("lags_sequence",), None) or [0])


def _future(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    length = int(size(config, ("prediction_length",), 4))
    channels = size(config, ("num_input_channels",), None)
    shape = (BATCH, length) if channels is None else (BATCH, length, int(channels))
    return torch.randn(*shape, generator=draw)


def _known(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor | None:
    return (
        torch.ones_like(_values(config, form, draw)) if hasattr(config, "lags_sequence") else None
    )


def _past_features(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    count = int(size(config, ("num_time_features",), 0))
    return torch.randn(BATCH, _past(config), count, generator=draw)


def _future_features(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    count = int(size(config, ("num_time_features",), 0))
    length = int(size(config, ("prediction_length",), 4))
    return torch.randn(BATCH, length, count, generator=draw)


def _grid(config: PretrainedConfig, form: Form, draw: torch.Generator) -> Tensor:
    return torch.tensor([[1, 4, 4]] * BATCH)


_MAKERS: dict[str, Make] = {
    "input_ids": _ids,
    "attention_mask": _ones,
    "feature_attention_mask": _frames,
    "input_features_mask": _frames,
    "decoder_input_ids": _ids,
    "token_type_ids": _zeros,
    "pixel_values": _pixels,
    "pixel_values_videos": _video,
    "input_values": _audio,
    "input_features": _features,
    "labels": _labels,
    "image_grid_thw": _grid,
    "grid_thw": _grid,
    "mm_token_type_ids": _kinds,
    "next_sentence_label": _class,
    "sentence_order_label": _class,
    "start_positions": _class,
    "end_positions": _class,
    "bbox": _boxes,
    "inputs_embeds": _hidden,
    "hidden_states": _hidden,
    "encoder_hidden_states": _hidden,
    "past_values": _values,
    "past_observed_mask": _known,
    "past_time_features": _past_features,
    "future_values": _future,
    "future_time_features": _future_features,
}
"""What is made of each name of an argument; others keep their defaults."""

_GUESSES: tuple[tuple[str, Make], ...] = (
    ("mask", _trues),
    ("position", _positions),
    ("_ids$|tokens|codes|labels", _ids),
    ("mel|spectrogram|audio|waveform|speech", _features),
    ("pixel|image|video|patches", _pixels),
    ("hidden|embed|states|features|context|inputs|latent|query|sample", _hidden),
)
"""What is made of arguments that are needed, by what their names hold."""


def _guessed(name: str) -> Make | None:
    return next((maker for pattern, maker in _GUESSES if re.search(pattern, name)), None)
