"""What is computed in chunks within microbatches, where ranks write over what they read last."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.runtime.api import verify
from tests.end_to_end.test_chunks import CLASSES, Language, compiled


@pytest.mark.parametrize("mesh", ["2", "3"])
@pytest.mark.parametrize("per_op", [False, True])
def test_every_value_is_judged_before_it_is_written_over(
    per_op: bool, mesh: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Language(tied=True).double()
    batch = torch.randint(0, CLASSES, (4, 9)), torch.randint(0, CLASSES, (4, 9))
    said = {"chunks": {"head": (1, 4)}, "accumulate": 2, "strategy": "fsdp:0"}
    compiled(model, batch, mesh, **said).save(tmp_path)
    found = verify(tmp_path, batch, per_op=per_op)
    assert [*map(str, (each for each in found.values if not each.ok))] == []
    assert found.ok
