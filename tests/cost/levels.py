"""A cluster whose devices are close to some, and far from others."""

from __future__ import annotations

from autopar.cost import Cluster, LinkLevel


def two_levels(near: int) -> Cluster:
    """Returns a cluster with fast links among so many devices, and slow ones between them."""
    links = (LinkLevel("near", near, 1.0, 0.25), LinkLevel("far", 64, 8.0, 2.0))
    return Cluster("levels", "", 1, 1e3, (("f32", 1.0),), links)
