"""Batch norms of which torch's own `forward` can't be traced, though they have a static program.

`nn.SyncBatchNorm` asks for the processes of the job, and for a GPU. Its statistics are those of the
global batch, as those of any batch norm are here. With `momentum=None` the number of batches so far
is read as a number of Python.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def make_batch_norms_static(model: nn.Module) -> None:
    """Lets the batch norms within a module be traced; the module is changed."""
    for each in model.modules():
        if not isinstance(each, _BatchNorm) or not _has_own_forward(each):
            continue
        if isinstance(each, nn.SyncBatchNorm) or each.momentum is None:
            vars(each)["forward"] = partial(_forward, each)


def _has_own_forward(norm: _BatchNorm) -> bool:
    """Whether nobody has replaced the `forward` of torch's."""
    return type(norm).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def _forward(norm: _BatchNorm, x: Tensor) -> Tensor:
    counted = norm.training and norm.track_running_stats and norm.num_batches_tracked is not None
    if norm.momentum is not None or not counted:
        return _BatchNorm.forward(norm, x)
    norm._check_input_dim(x)  # type: ignore[no-untyped-call]
    found = nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
    _average(norm, x.detach())
    return found


def _average(norm: _BatchNorm, x: Tensor) -> None:
    """Makes the running statistics the mean of those of all batches so far."""
    count, mean, variance = norm.num_batches_tracked, norm.running_mean, norm.running_var
    assert count is not None
    assert mean is not None
    assert variance is not None
    with torch.no_grad():
        count.add_(1)
        share = count.to(mean.dtype).reciprocal()
        dims = [dim for dim in range(x.ndim) if dim != 1]
        new = reversed(torch.var_mean(x.to(mean.dtype), dims))
        for running, found in zip((mean, variance), new, strict=True):
            running.mul_(1 - share).add_(found * share)
