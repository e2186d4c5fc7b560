"""Pipelines: microbatches on their way from stage to stage.

schedules   in which order each process does its parts of a step
runs        at which indices of the pipeline's axis stages are
outline     makes functions of these parts
order       puts the ops of a program into that order
"""

from __future__ import annotations

from autopar.partition.pipeline.order import Order
from autopar.partition.pipeline.outline import Outline
from autopar.partition.pipeline.schedules import SCHEDULES

__all__ = ["SCHEDULES", "Order", "Outline"]
