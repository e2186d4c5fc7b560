"""What tests run in real processes; kept apart so that the processes can import it."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.ir.program import Op
from autopar.runtime.communication import COLLECTIVES
from autopar.runtime.groups import Group
from autopar.runtime.processes import Processes
from autopar.runtime.reference import collective
from tests.runtime.cases import cases


def compare_collectives(processes: Processes) -> list[str]:
    """Returns the cases in which a rank's result isn't what the definition says."""
    _join(processes)
    size, rank = processes.size, processes.rank
    tag = dist.group.WORLD.group_name
    wrong = []
    for order in (tuple(range(size)), tuple(reversed(range(size)))):
        position = order.index(rank)
        group = Group(tag, size, position, order, "gloo")
        for op, tensors in cases(size):
            expected = collective(op, tensors)[position]
            args = [arg for name, arg in op.args if name not in ("self", "group")]
            found = COLLECTIVES[op.kind](tensors[position], *args, group)
            if problem := _difference(found, expected):
                shapes = [list(t.shape) for t in tensors]
                wrong.append(f"{_describe(op)} {tensors[0].dtype} {shapes} {order}: {problem}")
    dist.destroy_process_group()
    return wrong


def _join(processes: Processes) -> None:
    timeout = timedelta(seconds=30)
    store = processes.connect(timeout)
    dist.init_process_group(
        "gloo", store=store, rank=processes.rank, world_size=processes.size, timeout=timeout
    )


def _describe(op: Op) -> str:
    return f"{op.kind}({', '.join(f'{n}={a}' for n, a in op.args if n != 'self')})"


def _difference(found: Tensor, expected: Tensor) -> str:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{list(found.shape)} instead of {expected.dtype}{expected.shape}"
    if not found.is_contiguous():
        return "not contiguous"
    if found.dtype in (torch.float8_e4m3fn, torch.uint16, torch.uint64):
        found, expected = found.to(torch.float64), expected.to(torch.float64)
    same = torch.allclose(found, expected, rtol=0, atol=0, equal_nan=True)
    return "" if same else f"{found.tolist()} instead of {expected.tolist()}"
