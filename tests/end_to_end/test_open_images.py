"""Models on images of any batch, height and width give what ONNX Runtime gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch

from autopar.base.errors import InvalidInputError
from autopar.cost import Cluster
from autopar.frontend.onnx import import_onnx
from autopar.ir.builds.manifest import NARROWED
from autopar.onnx_models import compile_onnx
from autopar.runtime.api import run
from tests.given.clusters import without_latency
from tests.given.models import MODELS, model_inputs, model_path
from tests.given.open_images import KINDS, open_images

Image = npt.NDArray[np.float32]

STEPS = {"unet": 4}
"""Of what heights and widths are multiples, by kind."""

SIZES = ((1, 32, 32), (3, 10, 9), (2, 9, 11), (7, 20, 13), (1, 64, 17))
"""Batch, height and width; the latter two in steps."""

CLUSTER = without_latency(Cluster.load("cpu"))
"""On it bytes decide also where they are few."""

ALL = [(mesh, strategy) for mesh in ("1", "2x4", "3x2", "2x2x2") for strategy in ("data", "auto")]


def image(batch: int, height: int, width: int) -> Image:
    random = np.random.default_rng([batch, height, width])
    return random.normal(size=(batch, 3, height, width)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [
        pytest.param(*each, marks=[] if each == ("2x4", "data") else pytest.mark.slow)
        for each in ALL
    ],
)
def test_any_image_on_any_mesh(kind: str, mesh: str, strategy: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path, build = tmp_path / "model.onnx", tmp_path / "build"
    onnx.save(open_images(kind), path)
    compile_onnx(path, build, mesh=mesh, strategy=strategy)
    compare(build, onnxruntime.InferenceSession(path), STEPS.get(kind, 1))


def compare(build: Path, session: Any, step: int) -> None:
    """Compares what a build makes of images of several sizes with ONNX Runtime."""
    for batch, height, width in SIZES:
        x = image(batch, height * step, width * step)
        found = run(build, {"x": torch.from_numpy(x)}, virtual=True)["y"].numpy()
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_allclose(found, wanted, atol=2e-4, rtol=1e-3)


PINNED = {"2": [None, None, "0", None], "3x2": [None, None, "0", "1"]}
"""How images are split along height and width, by mesh."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", [pytest.param("2", marks=pytest.mark.slow), "3x2"])
def test_any_image_split_along_space(kind: str, mesh: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path, build = tmp_path / "model.onnx", tmp_path / "build"
    onnx.save(open_images(kind), path)
    done = compile_onnx(
        path, build, mesh=mesh, strategy="none", shard={"x": PINNED[mesh]}, cluster=CLUSTER
    )
    assert "redistribute" in done.summary()
    compare(build, onnxruntime.InferenceSession(path), STEPS.get(kind, 1))


def test_images_that_are_no_multiples_are_refused_by_name(tmp_path: Path) -> None:
    path, build = tmp_path / "model.onnx", tmp_path / "build"
    onnx.save(open_images("unet"), path)
    compile_onnx(path, build, mesh="2", strategy="data", dims={"width": "64~8:128:8"})
    x = torch.from_numpy(image(1, 10, 12))
    with pytest.raises(InvalidInputError) as refused:
        run(build, {"x": x}, virtual=True)
    text = str(refused.value)
    assert "dimension 2 of input 'x' is 10; height is at least 4, and a multiple of 4" in text
    assert "is 12; width is at least 8 and at most 128, and a multiple of 8" in text


@dataclass(frozen=True)
class Real:
    """A real model with all of its dimensions open.

    Attributes:
        narrowed: What the report says that sizes may be, and why that is so.
        sizes: Sizes at which it is compared, of all dimensions that are open.
    """

    narrowed: dict[str, str] = field(default_factory=dict)
    sizes: tuple[tuple[int, ...], ...] = ()


_BATCH, _HEIGHT, _WIDTH = (f"p2o_DynamicDimension_{at}" for at in range(3))
REAL = {
    "minilm": Real({"sequence_length": "at most 512"}),
    "minilm_int8": Real({"sequence": "at most 512"}),
    # A slice of all rows ends there.
    "magika": Real({"unk__214": "at most 1000000000"}),
    # What is added was halved five times, and doubled as often.
    "ocr_det": Real(
        {_HEIGHT: "at least 32, a multiple of 32", _WIDTH: "at least 32, a multiple of 32"},
        ((1, 32, 32), (2, 64, 96), (3, 32, 160), (1, 96, 64)),
    ),
    # A window of 2 x 2 must fit into what is left of the image.
    "ocr_cls": Real(
        {"x_2": "at least 33", "x_3": "at least 3"},
        ((1, 48, 192), (3, 48, 100), (5, 33, 3), (2, 64, 77)),
    ),
    # The height, of which a 48th is left, is squeezed away; of the width an eighth must be left.
    "ocr_rec": Real(
        {"x_2": "at least 33, at most 80", _HEIGHT: "at least 5"},
        ((1, 48, 320), (3, 48, 100), (2, 33, 5), (5, 80, 77)),
    ),
    # The first of its windows must fit.
    "silero_vad": Real(
        {"batch": "at least 1", "sequence": "at least 192"},
        ((1, 576), (3, 512), (2, 193), (5, 1001)),
    ),
}
"""The seven models: no dimension has to be bound by `--dims`, but some are of a range."""


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_dimension_of_a_real_model_has_to_be_bound(name: str) -> None:
    found: dict[str, str] = {}
    for entry in import_onnx(model_path(name)).report:
        if entry.category == NARROWED:
            said = found.get(entry.subject)
            found[entry.subject] = f"{said}, {entry.detail}" if said else entry.detail
    assert found == REAL[name].narrowed


def feeds_of(name: str, sizes: tuple[int, ...]) -> dict[str, npt.NDArray[np.generic]]:
    if name == "silero_vad":
        given = dict(model_inputs(name, batch=sizes[0]).arrays)
        random = np.random.default_rng(sizes)
        given["input"] = random.uniform(-1, 1, sizes).astype(np.float32)
        return given
    return {"x": image(*sizes)}


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, real in REAL.items() if real.sizes])
@pytest.mark.parametrize(("mesh", "strategy"), ALL)
def test_real_models_at_any_size(name: str, mesh: str, strategy: str, tmp_path: Path) -> None:
    compile_onnx(model_path(name), tmp_path, mesh=mesh, strategy=strategy)
    check_real(name, tmp_path)


def check_real(name: str, build: Path) -> None:
    """Compares a build of a real model with ONNX Runtime at several sizes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model_path(name))
    names = [output.name for output in session.get_outputs()]
    for sizes in REAL[name].sizes:
        feeds = feeds_of(name, sizes)
        given = {label: torch.from_numpy(np.asarray(x)) for label, x in feeds.items()}
        found = run(build, given, virtual=True)
        for label, wanted in zip(names, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(found[label].numpy(), wanted, atol=2e-4, rtol=1e-3)


SPATIAL = {
    **dict.fromkeys(("ocr_det", "ocr_cls", "ocr_rec"), ("x", PINNED)),
    "silero_vad": ("input", {"2": [None, "0"], "3x2": [None, "0"]}),
}
"""The input of a model that is split along space or time, and how, by mesh."""


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", SPATIAL)
@pytest.mark.parametrize("mesh", PINNED)
def test_real_models_split_along_space(name: str, mesh: str, tmp_path: Path) -> None:
    label, pins = SPATIAL[name]
    shard = {label: pins[mesh]}
    done = compile_onnx(
        model_path(name), tmp_path, mesh=mesh, strategy="none", shard=shard, cluster=CLUSTER
    )
    assert "redistribute" in done.summary()
    assert "kept whole" not in done.summary()
    check_real(name, tmp_path)
