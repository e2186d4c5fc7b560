"""What families of vision models are trained for: the loss of each task, and its batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.sweep.case import floats

BATCH = 4
CLASSES = 10
BOXES = 3
"""Boxes of each image; there are as many of each, as batches are tensors."""


class Found(NamedTuple):
    """What a model that is trained for a task returns.

    Attributes:
        loss: None where there is none: a detector's, in evaluation mode.
        outputs: Everything else that is compared.
    """

    loss: Tensor | None
    outputs: list[Tensor]


class Classification(nn.Module):
    """Cross entropy of all logits: those of images, of their pixels, and of auxiliary heads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Found:
        outputs = floats(self.model(images))
        first, *rest = (F.cross_entropy(each, labels) for each in outputs)
        return Found(sum(rest, first), outputs)


class Features(nn.Module):
    """A model of images that has no loss; one is made up from its outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> list[Tensor]:
        return floats(self.model(images))


class Flow(nn.Module):
    """Distances of all estimates of a flow between two images from a true one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, after: Tensor, flow: Tensor) -> Found:
        outputs = self.model(images, after, num_flow_updates=2)
        first, *rest = ((each - flow).abs().mean() for each in outputs)
        return Found(sum(rest, first), outputs)


class Detection(nn.Module):
    """A detector's own losses; in evaluation mode what it detects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, boxes: Tensor, labels: Tensor, masks: Tensor) -> Found:
        if not self.training:
            return Found(None, floats(self.model(list(images))))
        targets = [
            {"boxes": box, "labels": label, "masks": mask}
            for box, label, mask in zip(boxes, labels, masks, strict=True)
        ]
        losses: Mapping[str, Tensor] = self.model(list(images), targets)
        first, *rest = losses.values()
        return Found(sum(rest, first), [])


class DetectorParts(nn.Module):
    """What a detector learns: backbone and heads, without the choice among what they find.

    Regions of interest, where a detector looks at some, are given.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, boxes: Tensor) -> list[Tensor]:
        features = self.model.backbone(images)
        maps = list(features.values())
        if hasattr(self.model, "head"):
            return floats(self.model.head(maps))
        heads = self.model.roi_heads
        regions = list(boxes)
        sizes = [(images.shape[-2], images.shape[-1])] * len(regions)
        found = heads.box_head(heads.box_roi_pool(features, regions, sizes))
        outputs = [self.model.rpn.head(maps), heads.box_predictor(found)]
        if heads.mask_roi_pool is not None:
            masked = heads.mask_head(heads.mask_roi_pool(features, regions, sizes))
            outputs.append(heads.mask_predictor(masked))
        return floats(outputs)


class Deformable(nn.Module):
    """A network of one deformable convolution, which torchvision has in none of its models."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        from torchvision.ops import DeformConv2d

        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.offset = nn.Conv2d(channels, 2 * 9, 3, padding=1)
        self.mask = nn.Conv2d(channels, 9, 3, padding=1)
        self.deformed = DeformConv2d(channels, channels, 3, padding=1)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        stem = self.stem(images).relu()
        found = self.deformed(stem, self.offset(stem), self.mask(stem).sigmoid())
        logits: Tensor = self.head(found.relu().mean((2, 3)))
        return logits


Shape = tuple[int, ...]
Make = Callable[[Shape, torch.Generator], Tensor]


def _images(shape: Shape, draw: torch.Generator) -> Tensor:
    return torch.rand(BATCH, *shape, generator=draw, dtype=torch.float64)


def _classes(shape: Shape, draw: torch.Generator) -> Tensor:
    return torch.randint(0, CLASSES, (BATCH,), generator=draw)


def _classes_of_pixels(shape: Shape, draw: torch.Generator) -> Tensor:
    return torch.randint(0, CLASSES, (BATCH, *shape[1:]), generator=draw)


def _classes_of_boxes(shape: Shape, draw: torch.Generator) -> Tensor:
    return torch.randint(1, CLASSES, (BATCH, BOXES), generator=draw)


def _flow(shape: Shape, draw: torch.Generator) -> Tensor:
    return torch.randn(BATCH, 2, *shape[1:], generator=draw, dtype=torch.float64)


def _boxes(shape: Shape, draw: torch.Generator) -> Tensor:
    extents = torch.tensor([shape[-1], shape[-2]], dtype=torch.float64)
    low, size = torch.rand(2, BATCH, BOXES, 2, generator=draw, dtype=torch.float64) * 0.5
    return torch.cat([low, low + size + 0.1], -1).clamp(max=1.0) * extents.repeat(2)


def _masks(shape: Shape, draw: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (BATCH, BOXES, *shape[1:]), generator=draw, dtype=torch.uint8)


TASKS: Mapping[str, tuple[Callable[[Any], nn.Module], Mapping[str, Make]]] = {
    "classification": (Classification, {"images": _images, "labels": _classes}),
    "segmentation": (Classification, {"images": _images, "labels": _classes_of_pixels}),
    "features": (Features, {"images": _images}),
    "flow": (Flow, {"images": _images, "after": _images, "flow": _flow}),
    "detection": (
        Detection,
        {"images": _images, "boxes": _boxes, "labels": _classes_of_boxes, "masks": _masks},
    ),
    "detector parts": (DetectorParts, {"images": _images, "boxes": _boxes}),
}
"""What surrounds a model for a task, and what its batches are made of."""


def make_batch(task: str, shape: Shape, number: int) -> dict[str, Tensor]:
    """Returns the batch of a step.

    Args:
        task: One of `TASKS`.
        shape: Of an image: channels, then frames of a video, then height and width.
        number: Of the step; each has other contents.
    """
    draw = torch.Generator().manual_seed(number)
    return {name: make(shape, draw) for name, make in TASKS[task][1].items()}
