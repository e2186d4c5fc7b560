"""Partition: from a completed program for one device to the program that every rank runs."""

from __future__ import annotations

from autopar.partition.coalesce import Coalesce
from autopar.partition.offload import OffloadState
from autopar.partition.pipeline import Order, Outline
from autopar.partition.prefetch import Prefetch
from autopar.partition.recompute import Recompute
from autopar.partition.repeat_loops import RepeatLoops
from autopar.partition.roll import Roll
from autopar.partition.spmd import Partition
from autopar.partition.unroll_loops import UnrollLoops

__all__ = [
    "Coalesce",
    "OffloadState",
    "Order",
    "Outline",
    "Partition",
    "Prefetch",
    "Recompute",
    "RepeatLoops",
    "Roll",
    "UnrollLoops",
]
