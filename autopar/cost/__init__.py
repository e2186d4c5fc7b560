"""Seconds and bytes: what a cluster can do, and what ops, collectives and reshards cost on it."""

from __future__ import annotations

from autopar.cost.cluster import Cluster
from autopar.cost.collectives import CommunicationModel
from autopar.cost.evaluation import Evaluation, evaluate, evaluate_together
from autopar.cost.links import LinkLevel
from autopar.cost.memory.buffers import AUTOGRAD, Buffer, Execution, Lifetimes
from autopar.cost.memory.lifetimes import lifetimes
from autopar.cost.memory.peak_rank import kinds_of_ranks, peak_bytes_of, peak_rank_timeline
from autopar.cost.memory.timeline import (
    CPU,
    CUDA,
    EXACT,
    Allocator,
    MemoryTimeline,
    memory_timeline,
)
from autopar.cost.op_cost import OpCost
from autopar.cost.reshard.planner import ReshardPlanner, plan_reshard
from autopar.cost.reshard.reshards import Move, Reshard
from autopar.cost.roofline import (
    least_op_seconds,
    local_bytes,
    local_operations,
    op_seconds,
)

__all__ = [
    "AUTOGRAD",
    "CPU",
    "CUDA",
    "EXACT",
    "Allocator",
    "Buffer",
    "Cluster",
    "CommunicationModel",
    "Evaluation",
    "Execution",
    "Lifetimes",
    "LinkLevel",
    "MemoryTimeline",
    "Move",
    "OpCost",
    "Reshard",
    "ReshardPlanner",
    "evaluate",
    "evaluate_together",
    "kinds_of_ranks",
    "least_op_seconds",
    "lifetimes",
    "local_bytes",
    "local_operations",
    "memory_timeline",
    "op_seconds",
    "peak_bytes_of",
    "peak_rank_timeline",
    "plan_reshard",
]
