"""Counts of n-grams of integers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch

from autopar.frontend.onnx.trace.node import Node, Refused
from autopar.frontend.onnx.trace.values import Translation


def _tfidf(node: Node, x: torch.Tensor) -> torch.Tensor:
    """Counts the n-grams of a pool in each row, weighted as `mode` says (ONNX TfIdfVectorizer)."""
    if node.has("pool_strings"):
        raise Refused("strings have no place in a program; turn texts into numbers before it runs")
    counts = torch.stack(
        [_count(node, x, gram) for gram in _pool(node, node.integers("pool_int64s") or [])], -1
    )
    columns = node.integers("ngram_indexes") or []
    weights = node.numbers("weights") or [1.0] * len(columns)
    mode = node.text("mode")
    if mode not in ("TF", "IDF", "TFIDF") or not len(columns) == len(weights) == counts.shape[-1]:
        raise Refused(f"mode {mode!r}, {len(columns)} indexes and {len(weights)} weights")
    if mode == "IDF":
        counts = counts.clamp(max=1)
    spread = torch.zeros(len(columns), max(columns) + 1)
    rows = torch.arange(len(columns))
    factors = torch.tensor(weights if mode != "TF" else [1.0] * len(columns))
    spread = spread.index_put((rows, torch.tensor(columns)), factors)
    return torch.matmul(counts.to(torch.float32), spread)


def _pool(node: Node, items: list[int]) -> list[list[int]]:
    """Returns the n-grams of the pool, which holds those of one item, of two, and so on."""
    starts = [*(node.integers("ngram_counts") or []), len(items)]
    grams: list[list[int]] = []
    for at, (start, end) in enumerate(itertools.pairwise(starts)):
        size = at + 1
        if not 0 <= start <= end <= len(items) or (end - start) % size:
            raise Refused(f"ngram_counts {starts[:-1]} for {len(items)} items")
        grams.extend(items[first : first + size] for first in range(start, end, size))
    if not grams:
        raise Refused("its pool holds no n-grams")
    return grams


def _count(node: Node, x: torch.Tensor, gram: list[int]) -> torch.Tensor:
    """Counts an n-gram in each row, with every number of items left out between its items."""
    length = x.shape[-1]
    total = torch.zeros(x.shape[:-1], dtype=torch.int64)
    if not node.integer("min_gram_length") <= len(gram) <= node.integer("max_gram_length"):
        return total
    steps = range(1, node.integer("max_skip_count") + 2) if len(gram) > 1 else (1,)
    for step in steps:
        windows = length - (len(gram) - 1) * step
        if windows > 0:
            parts = [x.narrow(-1, at * step, windows) == item for at, item in enumerate(gram)]
            total = total + torch.stack(parts).all(0).sum(-1)
    return total


TABLE: Mapping[str, Translation] = {"TfIdfVectorizer": Translation(_tfidf)}
