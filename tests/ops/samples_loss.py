"""Samples of losses and their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.ops.sample import Sample, f, i, s

REDUCTIONS = (0, 1, 2)
"""None, mean, sum."""


def samples() -> Iterator[Sample]:
    """Yields samples of every op of the family."""
    for reduction in REDUCTIONS:
        yield from nll(reduction)
        yield from nll_gradients(reduction)
        yield from cross_entropy(reduction)
        yield from elementwise(reduction)
        yield from margins(reduction)
    yield from alignments()
    yield s("nll_loss_forward", f(4), i(low=0, high=4), None, 2, -100)
    yield s("nll_loss_forward", f(4), i(low=0, high=4), f(4, low=0.5), 1, -100)
    yield s("nll_loss_forward", f(3, 4), torch.full((3,), 2), None, 1, 2)
    yield s("nll_loss_nd", f(4), i(low=0, high=4), None, 1)


def alignments() -> Iterator[Sample]:
    """Yields losses of sequences that are aligned with shorter ones, one that can't be."""
    given = {
        "log_probs": f(6, 4, 5).log_softmax(-1),
        "targets": i(4, 3, low=1, high=5),
        "input_lengths": torch.tensor([6, 5, 6, 1]),
        "target_lengths": torch.tensor([3, 2, 1, 3]),
        "blank": 0,
        "zero_infinity": True,
    }
    yield Sample("autopar.ctc_loss", given)
    yield Sample("autopar.ctc_loss_backward", {"grad": f(4), **given})


def nll(reduction: int) -> Iterator[Sample]:
    """Yields samples of the negative log likelihood."""
    scores, target = f(6, 4).log_softmax(1), i(6, low=0, high=4)
    maps, pixels = f(2, 4, 3, 2), i(2, 3, 2, low=0, high=4)
    weight = f(4, low=0.5)
    yield s("nll_loss_forward", scores, target, weight, reduction, 1)
    yield s("nll_loss_forward", scores, target, None, reduction, -100)
    yield s("nll_loss_forward", scores.bfloat16(), target, None, reduction, 0)
    yield s("nll_loss2d_forward", maps, pixels, weight, reduction, -100)
    yield s("nll_loss2d_forward", maps, pixels, None, reduction, 3)
    yield s("nll_loss", scores, target, weight, reduction)
    yield s("nll_loss2d", maps, pixels, None, reduction)
    yield s("nll_loss_nd", f(2, 4, 3), i(2, 3, low=0, high=4), weight, reduction, 2)


def nll_gradients(reduction: int) -> Iterator[Sample]:
    """Yields samples of its gradient."""
    scores, target = f(6, 4).log_softmax(1), i(6, low=0, high=4)
    maps, pixels = f(2, 4, 3, 2), i(2, 3, 2, low=0, high=4)
    total, weight = torch.tensor(3.5, dtype=torch.float64), f(4, low=0.5)
    grad = f(6) if reduction == 0 else f()
    yield s("nll_loss_backward", grad, scores, target, weight, reduction, 1, total)
    yield s("nll_loss_backward", grad, scores, target, None, reduction, -100, total)
    grad = f(2, 3, 2) if reduction == 0 else f()
    yield s("nll_loss2d_backward", grad, maps, pixels, None, reduction, -100, total)
    yield s("nll_loss2d_backward", grad, maps, pixels, weight, reduction, 0, total)
    one = i(low=0, high=4)
    yield s("nll_loss_backward", f(), f(4), one, weight, reduction, -100, total)


def cross_entropy(reduction: int) -> Iterator[Sample]:
    """Yields samples of the cross-entropy of classes and of probabilities."""
    name, scores, target = "cross_entropy_loss", f(6, 4), i(6, low=0, high=4)
    weight = f(4, low=0.5)
    yield s(name, scores, target, None, reduction)
    yield s(name, scores, target, weight, reduction, 1, 0.2)
    yield s(name, scores, target, None, reduction, 2, 0.3)
    yield s(name, f(2, 4, 3, 2), i(2, 3, 2, low=0, high=4), weight, reduction)
    yield s(name, scores, f(6, 4).softmax(1), weight, reduction, -100, 0.1)
    yield s(name, f(2, 4, 3), f(2, 4, 3).softmax(1), None, reduction)
    yield s(name, f(4), i(low=0, high=4), None, reduction)
    yield s(name, f(4), f(4).softmax(0), None, reduction)


def elementwise(reduction: int) -> Iterator[Sample]:
    """Yields samples of losses between elements."""
    x, y = f(3, 4), f(4, 3).T.contiguous()
    chance = f(3, 4, low=0.1, high=0.9)
    grad = f(3, 4, low=-1) if reduction == 0 else f()
    for name, *more in (("mse_loss",), ("smooth_l1_loss", 0.7), ("huber_loss", 0.7)):
        yield s(name, x, y, reduction, *more)
        yield s(f"{name}_backward", grad, x, y, reduction, *more)
    yield s("soft_margin_loss", x, y.sign(), reduction)
    yield s("soft_margin_loss_backward", grad, x, y.sign(), reduction)
    for weight in (None, f(3, 4), f(4)):
        yield s("binary_cross_entropy", chance, chance.flip(0), weight, reduction)
        yield s("binary_cross_entropy_backward", grad, chance, chance.flip(0), weight, reduction)
    yield s("binary_cross_entropy_with_logits", x, chance, None, f(4), reduction)
    yield s("binary_cross_entropy_with_logits", x, chance, f(3, 1), None, reduction)


def margins(reduction: int) -> Iterator[Sample]:
    """Yields samples of losses that compare the scores of a row."""
    x, target, weight = f(5, 4), i(5, low=0, high=4), f(4, low=0.5)
    grad = f(5, low=-1) if reduction == 0 else f()
    yield s("multi_margin_loss", x, target, 1, 0.7, weight, reduction)
    yield s("multi_margin_loss", x, target, 2, 1.0, None, reduction)
    yield s("multi_margin_loss_backward", grad, x, target, 1, 0.7, weight, reduction)
    labels = torch.tensor(
        [[3, 0, -1, 1], [0, -1, 1, 2], [2, 1, 0, -1], [-1, 0, 1, 2], [1, 2, 3, 0]]
    )
    yield s("multilabel_margin_loss_forward", x, labels, reduction)
    _, chosen = torch.ops.aten.multilabel_margin_loss_forward(x, labels, reduction)
    yield s("multilabel_margin_loss_backward", grad, x, labels, reduction, chosen)
