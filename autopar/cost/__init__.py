"""Seconds and bytes: what a cluster can do, and what ops, collectives and reshards cost on it."""

from __future__ import annotations

from autopar.cost.cluster import Cluster, LinkLevel
from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard import Move, Reshard, ReshardPlanner, plan_reshard
from autopar.cost.roofline import local_bytes, local_flops, op_seconds

__all__ = [
    "Cluster",
    "CommunicationModel",
    "LinkLevel",
    "Move",
    "Reshard",
    "ReshardPlanner",
    "local_bytes",
    "local_flops",
    "op_seconds",
    "plan_reshard",
]
