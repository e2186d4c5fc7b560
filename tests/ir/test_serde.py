"""Bytes of programs, rank tables and manifests: round trips, determinism, and bad input."""

from __future__ import annotations

from hypothesis import given, settings

from autopar.ir.deployment import Deployment
from autopar.ir.manifest import Manifest
from autopar.ir.program import Program
from autopar.ir.serde import (
    deployment_from_bytes,
    deployment_to_bytes,
    manifest_from_bytes,
    manifest_to_bytes,
    program_from_bytes,
    program_to_bytes,
)
from autopar.ir.text import print_program
from tests.ir import strategies


@settings(max_examples=150)
@given(strategies.programs())
def test_every_program_comes_back_equal(program: Program) -> None:
    read = program_from_bytes(program_to_bytes(program))
    assert read == program
    # Text tells apart what is equal to Python: 1, 1.0 and True, 0.0 and -0.0.
    assert print_program(read) == print_program(program)


@given(strategies.deployments())
def test_every_rank_table_comes_back_equal(deployment: Deployment) -> None:
    data = deployment_to_bytes(deployment)
    assert deployment_from_bytes(data, deployment.programs) == deployment
    assert deployment_from_bytes(data).ranks == deployment.ranks


@given(strategies.manifests)
def test_every_manifest_comes_back_equal(manifest: Manifest) -> None:
    assert manifest_from_bytes(manifest_to_bytes(manifest)) == manifest
