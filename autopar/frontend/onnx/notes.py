"""What of a model has no effect on the program: reported, never silently dropped."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto

from autopar.base.errors import Loc
from autopar.frontend.onnx.model.check import node_label
from autopar.ir.builds.manifest import ReportEntry

_SEEDED = (
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
"""Operators that may have a seed of their own."""


def ignored(model: ModelProto, file: str) -> Iterator[ReportEntry]:
    """Yields what the import ignores of a model.

    Args:
        model: The model.
        file: Its name, for source locations.
    """
    for configuration in getattr(model, "configuration", ()):
        yield ReportEntry(
            "ignored",
            f"device configuration {configuration.name!r}",
            f"the model says how to spread it over {configuration.num_devices} devices; "
            "give --mesh and pins instead",
            Loc(file),
        )
    for index, node in enumerate(model.graph.node):
        count = len(getattr(node, "device_configurations", ()))
        if count:
            label = node_label(node, index)
            yield ReportEntry(
                "ignored",
                f"{count} device_configurations of node {label!r}",
                "its sharding is not read",
                Loc(file, name=label),
            )
    for index, node in enumerate(model.graph.node):
        if node.op_type in _SEEDED and any(item.name == "seed" for item in node.attribute):
            label = node_label(node, index)
            detail = "its numbers depend on the seed that the program is given"
            yield ReportEntry("ignored", f"seed of node {label!r}", detail, Loc(file, name=label))
    stored = {tensor.name for tensor in model.graph.initializer}
    if model.ir_version >= 4:
        for value in model.graph.input:
            if value.name in stored:
                yield ReportEntry(
                    "ignored",
                    f"input {value.name!r}",
                    "it has a default value, and is treated as a constant",
                    Loc(file, name=value.name),
                )
    if model.training_info:
        yield ReportEntry("ignored", "training_info", "only the inference graph is read", Loc(file))
    if model.graph.quantization_annotation:
        what = "quantization annotations"
        yield ReportEntry("ignored", what, "quantized nodes are read", Loc(file))
