"""What members of a collective get on the virtual mesh is in memory of their own."""

from __future__ import annotations

import pytest
import torch

from autopar.ir.program import Op, Ref
from autopar.runtime.collectives.reference import collective

CASES = {
    "comm.all_reduce": {"monoid": "sum"},
    "comm.all_gather": {"dim": 0, "size": 6},
    "comm.broadcast": {"source": 1},
}


@pytest.mark.parametrize("kind", CASES)
def test_nobody_writes_over_what_another_one_has(kind: str) -> None:
    op = Op(kind, (("self", Ref("x")), *CASES[kind].items()), ("y",))
    given = [torch.full((4, 3), float(at)).t() for at in range(2)]
    first, second = collective(op, given)
    wanted, sent = second.clone(), [each.clone() for each in given]
    first.fill_(9)
    assert torch.equal(second, wanted)
    assert all(map(torch.equal, given, sent))


def test_what_is_sent_arrives_as_from_another_process() -> None:
    op = Op("comm.broadcast", (("self", Ref("x")), ("source", 0)), ("y",))
    results = collective(op, [torch.ones(4, 3).t(), torch.zeros(3, 4)])
    assert all(each.is_contiguous() for each in results)
