"""The same training step of the same GPT blocks, in several ways, for `step_time.py`.

A contender is made in every process after the process group, from the same weights, and trains on
global batches: it returns the loss of its rank. By hand: Megatron's tensor parallelism (Shoeybi et
al., 2019) with plain collectives in autograd functions. By torch: DTensor's `parallelize_module`,
DistributedDataParallel, and `fully_shard`. And the compiled programs, from a build folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from autopar.modules import compile
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer

Batch = tuple[Tensor, Tensor]
Step = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Size:
    """Sizes of the blocks and of a batch, and which optimizer trains them."""

    layers: int
    hidden: int
    heads: int
    batch: int
    sequence: int
    optimizer: str = "adamw"
    fused: bool = True

    def batches(self, count: int) -> list[Batch]:
        """Returns global batches: inputs and what the blocks should make of them."""
        drawn = torch.Generator().manual_seed(1)
        shape = (self.batch, self.sequence, self.hidden)
        return [
            (torch.randn(shape, generator=drawn), torch.randn(shape, generator=drawn))
            for _ in range(count)
        ]


class Block(nn.Module):
    """A block of GPT: causal attention and two layers with gelu, both behind a norm."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.head_size = hidden // heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attend(self, x: Tensor) -> Tensor:
        """Returns what the heads read, before the projection."""
        heads = (self.query(x), self.key(x), self.value(x))
        q, k, v = (each.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for each in heads)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attend(self.norm1(x)))
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


def blocks(size: Size) -> nn.Sequential:
    """Returns the blocks, with the same weights every time."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(size.hidden, size.heads) for _ in range(size.layers)))


def optimizer_of(parameters: Iterable[nn.Parameter], size: Size) -> torch.optim.Optimizer:
    """Returns the optimizer that all contenders have."""
    if size.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, fused=size.fused)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=size.fused)


def _looped(model: nn.Module, size: Size, take: Callable[[Tensor], Tensor]) -> Step:
    """Returns the usual training step of a model; `take` is the rank's part of a batch."""
    # Fused kernels take no lists of both kinds.
    kinds = (
        [p for p in model.parameters() if isinstance(p, DTensor) is kind] for kind in (True, False)
    )
    optimizers = [optimizer_of(parameters, size) for parameters in kinds if parameters]

    def step(batch: Batch) -> Tensor:
        x, target = map(take, batch)
        for each in optimizers:
            each.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()  # type: ignore[no-untyped-call]
        for each in optimizers:
            each.step()
        return loss.detach()

    return step


def _whole(x: Tensor) -> Tensor:
    return x


def _mine(x: Tensor) -> Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


class _Copy(torch.autograd.Function):
    """The start of a parallel region: gradients of its input are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient)
        return gradient


class _Sum(torch.autograd.Function):
    """The end of a parallel region: the ranks' parts are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class MegatronBlock(Block):
    """The rank's part of a block: its heads, and its columns of the hidden layer."""

    def __init__(self, whole: Block, rank: int, world: int) -> None:
        nn.Module.__init__(self)
        self.head_size = whole.head_size
        self.norm1, self.norm2 = whole.norm1, whole.norm2
        for name in ("query", "key", "value", "up"):
            setattr(self, name, _part(getattr(whole, name), 0, rank, world))
        for name in ("out", "down"):
            setattr(self, name, _part(getattr(whole, name), 1, rank, world))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._reduced(self.out, self.attend(_Copy.apply(self.norm1(x))))  # type: ignore[no-untyped-call]
        y = F.gelu(self.up(_Copy.apply(self.norm2(x))))  # type: ignore[no-untyped-call]
        return x + self._reduced(self.down, y)

    def _reduced(self, linear: nn.Linear, x: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(F.linear(x, linear.weight))  # type: ignore[no-untyped-call]
        return total + linear.bias


def _part(whole: nn.Linear, dim: int, rank: int, world: int) -> nn.Linear:
    """Returns the rank's rows (0) or columns (1) of a weight; the bias of columns stays whole."""
    weight = whole.weight.detach().chunk(world, dim)[rank].contiguous()
    bias = whole.bias.detach()
    part = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    part.weight = nn.Parameter(weight)
    part.bias = nn.Parameter(bias.chunk(world)[rank].clone() if dim == 0 else bias)
    return part


def megatron(size: Size) -> Step:
    """Tensor parallelism by hand: two all_reduces per block forward and two backward."""
    return _looped(_megatron(size), size, _whole)


def compiled_megatron(size: Size) -> Step:
    """The same under `torch.compile`."""
    return _looped(torch.compile(_megatron(size)), size, _whole)  # type: ignore[arg-type]


def _megatron(size: Size) -> nn.Sequential:
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = blocks(size)
    return nn.Sequential(
        *(MegatronBlock(each, rank, world) for each in whole if isinstance(each, Block))
    )


def dtensor(size: Size) -> Step:
    """Tensor parallelism by DTensor."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = blocks(size)
    columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    plan = {**columns, **dict.fromkeys(("out", "down"), RowwiseParallel())}
    for block in model:
        parallelize_module(block, mesh, plan)
    return _looped(model, size, _whole)


def ddp(size: Size) -> Step:
    """Data parallelism by DistributedDataParallel."""
    return _looped(DistributedDataParallel(blocks(size), gradient_as_bucket_view=True), size, _mine)


def compiled_ddp(size: Size) -> Step:
    """The same under `torch.compile`."""
    model = DistributedDataParallel(blocks(size), gradient_as_bucket_view=True)
    return _looped(torch.compile(model), size, _mine)  # type: ignore[arg-type]


def fsdp2(size: Size) -> Step:
    """Sharded parameters by `fully_shard`, block by block."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = blocks(size)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _looped(model, size, _mine)


BY_OTHERS: Mapping[str, Callable[[Size], Step]] = {
    "megatron": megatron,
    "dtensor": dtensor,
    "ddp": ddp,
    "fsdp2": fsdp2,
    "compiled megatron": compiled_megatron,
    "compiled ddp": compiled_ddp,
}
"""Contenders by name."""

STRATEGIES: Mapping[str, str] = {
    "tensor": "tensor:ranks",
    "data": "data:ranks",
    "fsdp": "fsdp:ranks",
}
"""Strategies of the compiled programs by name."""


def write_builds(size: Size, world: int, folder: Path) -> None:
    """Compiles the step with each strategy into a build folder of that name."""
    for name, strategy in STRATEGIES.items():
        model = blocks(size)
        compile(
            model,
            size.batches(1)[0],
            mesh=f"ranks={world}",
            strategy=strategy,
            loss=F.mse_loss,
            optimizer=optimizer_of(model.parameters(), size),
        ).save(folder / name)


def ours(build: Path, processes: Processes, torch_compile: bool) -> Trainer:
    """The compiled program of a build."""
    return open_trainer(build, processes=processes, torch_compile=torch_compile)
