"""Mapping: logical processes onto ranks, process groups, proof of communication, strip."""

from __future__ import annotations

from autopar.mapping.deploy import deploy
from autopar.mapping.map import Map
from autopar.mapping.placement import Placement, parse_placement
from autopar.mapping.prove import Proof, prove
from autopar.mapping.strip import Strip

__all__ = ["Map", "Placement", "Proof", "Strip", "deploy", "parse_placement", "prove"]
