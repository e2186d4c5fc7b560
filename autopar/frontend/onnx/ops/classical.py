"""Operators of the domain ai.onnx.ml that are plain arithmetic, as scikit-learn's models export."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from autopar.frontend.onnx.ops.refused import refusal
from autopar.frontend.onnx.trace.node import Node, Refused
from autopar.frontend.onnx.trace.values import Translation

_LEAST = 1e-30
"""What norms are at least, where they divide."""

_AFTER: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NONE": lambda scores: scores,
    "LOGISTIC": torch.sigmoid,
    "SOFTMAX": lambda scores: torch.softmax(scores, -1),
}
"""What becomes of scores, by `post_transform`."""

_TEXT = "its labels are texts, which have no place in a program"
_NUMBERS = "export with numbers as labels, and look texts up outside of the program"


def _scaler(node: Node, x: torch.Tensor) -> torch.Tensor:
    offset, scale = (torch.tensor(node.numbers(name) or [each]) for name, each in _PLAIN_SCALE)
    return (x.to(torch.float32) - offset) * scale


_PLAIN_SCALE = (("offset", 0.0), ("scale", 1.0))


def _normalizer(node: Node, x: torch.Tensor) -> torch.Tensor:
    kind = node.text("norm", "MAX")
    wide = x.to(torch.float32)
    if kind == "MAX":
        size = wide.abs().amax(-1, True)
    elif kind == "L1":
        size = wide.abs().sum(-1, True)
    else:
        size = (wide * wide).sum(-1, True).sqrt()
    return wide / size.clamp(min=_LEAST)


def _binarizer(node: Node, x: torch.Tensor) -> torch.Tensor:
    return (x > node.number("threshold")).to(x.dtype)


def _scores(node: Node, x: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns what lines make of each row of `x`, so many numbers per row."""
    coefficients = torch.tensor(node.numbers("coefficients") or [])
    if rows < 1 or not len(coefficients) or len(coefficients) % rows:
        raise Refused(f"{len(coefficients)} coefficients for {rows} results")
    intercepts = node.numbers("intercepts")
    bias = torch.tensor(intercepts) if intercepts else None
    return F.linear(x.to(torch.float32), coefficients.reshape(rows, -1), bias)


def _after(node: Node) -> Callable[[torch.Tensor], torch.Tensor]:
    kind = node.text("post_transform", "NONE")
    if kind not in _AFTER:
        raise Refused(f"post_transform {kind!r}; there are {', '.join(_AFTER)}")
    return _AFTER[kind]


def _linear_regressor(node: Node, x: torch.Tensor) -> torch.Tensor:
    return _after(node)(_scores(node, x, node.integer("targets", 1)))


def _linear_classifier(node: Node, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if node.texts("classlabels_strings"):
        raise Refused(_TEXT, _NUMBERS)
    labels = torch.tensor(node.integers("classlabels_ints") or [0, 1])
    count = len(node.numbers("intercepts") or labels)
    if count == 1 or count != len(labels):
        raise Refused(f"one score for {len(labels)} classes", "export a score for each class")
    scores = _after(node)(_scores(node, x, count))
    return labels[scores.argmax(-1)], scores


def _array_feature_extractor(node: Node, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    found = torch.index_select(x, -1, places.reshape(-1).to(torch.int64))
    return found.unsqueeze(0) if x.ndim == 1 else found


def _one_hot(node: Node, x: torch.Tensor) -> torch.Tensor:
    known = node.integers("cats_int64s")
    if not known:
        raise Refused(_TEXT, _NUMBERS)
    if not node.flag("zeros", True):
        raise Refused("zeros=0: whether a category is unknown depends on the data", "set zeros=1")
    return (x.to(torch.int64).unsqueeze(-1) == torch.tensor(known)).to(torch.float32)


def _label_encoder(node: Node, x: torch.Tensor) -> torch.Tensor:
    keys, values = (_listed(node, name, x) for name in ("keys", "values"))
    if len(keys) != len(values):
        raise Refused(f"{len(keys)} keys for {len(values)} values")
    same = x.unsqueeze(-1) == keys
    if keys.is_floating_point():
        same = same | (x.isnan().unsqueeze(-1) & keys.isnan())
    at = same.to(torch.uint8).argmax(-1)
    return torch.where(same.any(-1), values[at], _default(node, values))


def _listed(node: Node, name: str, x: torch.Tensor) -> torch.Tensor:
    """Returns the keys or values of a label encoder."""
    if f"{name}_tensor" in node.tensors:
        return node.tensors[f"{name}_tensor"].reshape(-1)
    if numbers := node.numbers(f"{name}_floats"):
        return torch.tensor(numbers)
    if integers := node.integers(f"{name}_int64s"):
        return torch.tensor(integers)
    raise Refused(_TEXT, _NUMBERS)


def _default(node: Node, values: torch.Tensor) -> torch.Tensor:
    """Returns what a label encoder makes of other keys."""
    if "default_tensor" in node.tensors:
        return node.tensors["default_tensor"].reshape(())
    if values.is_floating_point():
        return torch.tensor(node.number("default_float", -0.0), dtype=values.dtype)
    return torch.tensor(node.integer("default_int64", -1), dtype=values.dtype)


_MAPS = ("a map of labels has no place in a program", "export with the option zipmap=False")
_DATA = (
    "which way it goes through its trees, or vectors, depends on the data",
    "run this model elsewhere, as in ONNX Runtime",
)
_REASONS = {
    "ZipMap": _MAPS,
    "CastMap": _MAPS,
    "DictVectorizer": _MAPS,
    "CategoryMapper": (_TEXT, _NUMBERS),
    **dict.fromkeys(
        (
            "TreeEnsemble",
            "TreeEnsembleClassifier",
            "TreeEnsembleRegressor",
            "SVMClassifier",
            "SVMRegressor",
        ),
        _DATA,
    ),
}

TABLE: Mapping[str, Translation] = {
    "ArrayFeatureExtractor": Translation(_array_feature_extractor),
    "Binarizer": Translation(_binarizer),
    "LabelEncoder": Translation(_label_encoder),
    "LinearClassifier": Translation(_linear_classifier),
    "LinearRegressor": Translation(_linear_regressor),
    "Normalizer": Translation(_normalizer),
    "OneHotEncoder": Translation(_one_hot),
    "Scaler": Translation(_scaler),
    **{name: refusal(*why) for name, why in _REASONS.items()},
}
