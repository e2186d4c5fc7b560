"""What tests of parallel modules run in real processes."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import autopar
from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.parallel import compiling, watching
from autopar.runtime.job.processes import Processes
from autopar.runtime.state.wholes import whole_of
from tests.parallel.tiny import Scored, TinyGPT, adamw, loss_of, tiny, tokens, train

ANY = {"ids": {0: "batch", 1: "length=1:6"}}
"""Sizes of a batch that stay open."""


def join(processes: Processes) -> None:
    """Makes the job's process group."""
    address = f"tcp://{processes.address}:{processes.port}"
    dist.init_process_group(
        "gloo", init_method=address, rank=processes.rank, world_size=processes.size
    )


def launched(processes: Processes) -> None:
    """Sets what a launcher tells a process, and has the start wait for half a second."""
    found = {"RANK": processes.rank, "WORLD_SIZE": processes.size}
    place = {"MASTER_ADDR": processes.address, "MASTER_PORT": processes.port}
    os.environ.update({name: str(value) for name, value in {**found, **place}.items()})
    watching.START = 0.5


def alone(processes: Processes) -> None:
    """Parallelizes without the other rank."""
    launched(processes)
    quietly(tiny(), mesh="2")


def without_a_group(processes: Processes) -> tuple[str, str, int]:
    """Parallelizes in a job without a process group, which there is then."""
    launched(processes)
    watching.START = 60.0
    found, reference = quietly(tiny(), mesh="2"), tiny()
    same = torch.allclose(found(tokens(0)), reference(tokens(0)), atol=1e-5)
    return "" if same else "it differs", dist.get_backend(), dist.get_world_size()


def ended_before_the_next(processes: Processes) -> None:
    """Makes a module, and another one when rank 1 has ended."""
    join(processes)
    quietly(tiny(), mesh="2")
    dist.barrier()
    if processes.rank:
        os._exit(0)
    time.sleep(1.0)
    quietly(tiny(), mesh="2")


def ended_after_the_watch(processes: Processes) -> None:
    """The same, where the watch had ended before."""
    join(processes)
    quietly(tiny(), mesh="2")
    dist.barrier()
    if processes.rank:
        os._exit(0)
    (found,) = watching._watched().values()
    found.close()
    time.sleep(1.0)
    quietly(tiny(), mesh="2")


def several(processes: Processes, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Runs several of the functions below in one job, and returns what each returned."""
    join(processes)
    return {name: CHECKS[name](folder) for name in names}


def trained(mesh: Any, strategy: str, kinds: tuple[str, ...]) -> str:
    """Trains the same model alone and on the mesh; returns what differs."""
    torch.manual_seed(dist.get_rank())  # What a rank draws itself must not count.
    problems: list[str] = []
    for kind in kinds:
        model = tiny()
        if dist.get_rank():
            nn.init.zeros_(model.up.weight)
        parallel = quietly(model, mesh=mesh, strategy=strategy, parameters=kind)
        clip: Any = nn.utils.clip_grad_norm_
        if kind == "local":
            clip = lambda _, norm, module=parallel: module.clip_grad_norm_(norm)  # noqa: E731
        found = train(parallel, adamw(parallel), clip)
        reference = tiny()
        problems += differences(found, train(reference, adamw(reference)), parallel, reference)
        split = any(p.numel() != q.numel() for p, q in pieces(parallel, reference))
        problems += [] if split else [f"{kind}: nothing is split"]
    return "\n".join(problems)


def pieces(parallel: nn.Module, reference: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Returns pairs of what the rank holds of a parameter, and the whole one."""
    found = [p.to_local() if isinstance(p, DTensor) else p for p in parallel.parameters()]
    return list(zip(found, reference.parameters(), strict=True))


def quietly(model: nn.Module, **options: Any) -> autopar.ParallelModule:
    """Parallelizes without the warning that a fused weight is moved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return autopar.parallelize(model, tokens(0), **options)


def differences(
    found: Any, wanted: Any, parallel: autopar.ParallelModule, reference: nn.Module
) -> list[str]:
    """Returns where losses, norms and parameters differ."""
    problems = []
    pairs = {"losses": (torch.tensor(found), torch.tensor(wanted))}
    whole = parallel.full_state_dict()
    pairs.update((name, (whole[name], value)) for name, value in reference.state_dict().items())
    for name, (mine, theirs) in pairs.items():
        error = (mine - theirs).abs().max() / theirs.abs().max()
        if error > 1e-5:
            problems.append(f"{name}: {error:.1e}")
    return problems


def checkpointed(folder: Path) -> str:
    """Goes on from a checkpoint of torch's in another layout; returns what differs."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("x",))
    first = quietly(tiny(), mesh=mesh, strategy="tensor:x")
    optimizer = adamw(first)
    train(first, optimizer, steps=range(2))
    dcp.save(_state(first, optimizer), checkpoint_id=folder)
    other = quietly(tiny(), mesh=mesh, strategy="fsdp:x")
    optimizer = adamw(other)
    state = _state(other, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        other, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    found = train(other, optimizer, steps=range(2, 4))
    alone = tiny()
    wanted = train(alone, adamw(alone), steps=range(4))[2:]
    return "\n".join(differences(found, wanted, other, alone))


def _state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model, state = get_state_dict(module, optimizer)
    return {"model": model, "optimizer": state}


def whole(folder: Path) -> str:
    """Takes whole states out of a module and into others; returns what differs."""
    del folder
    first = quietly(tiny(), mesh="x=2", strategy="tensor:x")
    train(first, adamw(first), steps=range(1))
    again = quietly(tiny(), mesh="x=2", strategy="tensor:x", parameters="local")
    other = quietly(tiny(), mesh="x=2", strategy="fsdp:x")
    alone = tiny()
    for module in (again, other, alone):
        module.load_state_dict(first.full_state_dict())
    losses = [loss_of(m, tokens(7)).item() for m in (first, again, other, alone)]
    only_first = first.full_state_dict(everywhere=False)
    problems = [] if bool(only_first) == (dist.get_rank() == 0) else ["the state isn't on rank 0"]
    if max(losses) - min(losses) > 1e-5:
        problems.append(f"losses differ: {losses}")
    return "\n".join(problems)


def dropped(folder: Path) -> list[Any]:
    """Returns the outputs of two calls with dropout, as lists."""
    del folder
    parallel = quietly(tiny(dropout=0.5), mesh="tp=2", strategy="tensor:tp")
    return [parallel(tokens(0)).tolist() for _ in range(2)]


def accumulated(folder: Path) -> str:
    """Adds up gradients over batches of two shapes, one evaluation in between."""
    del folder
    model = tiny()
    pins = {"attention.qkv.weight": ["dp", None], "*.bias": ["dp"]}
    parallel = quietly(model, mesh="dp=2", strategy="fsdp:dp", shard=pins)
    for module in (model, parallel):
        (loss_of(module, tokens(0)) / 2).backward()
        module.eval()
        with torch.no_grad():
            module(tokens(3, batch=5))
        module.train()
        (loss_of(module, tokens(1, batch=3)) / 2).backward()
    problems = []
    for (name, mine), theirs in zip(parallel.named_parameters(), model.parameters(), strict=True):
        assert isinstance(mine.grad, DTensor)
        assert theirs.grad is not None
        error = (mine.grad.full_tensor() - theirs.grad).abs().max() / theirs.grad.abs().max()
        if error > 1e-5:
            problems.append(f"{name}: {error:.1e}")
    return "\n".join(problems)


def handed(folder: Path) -> str:
    """Gives each rank its part of the batch, and leaves the outputs split."""
    del folder
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    model = tiny()
    parallel = quietly(model, mesh=mesh, strategy="ddp:dp", outputs="dtensor")
    mine = tokens(0).chunk(2)[dist.get_rank()]
    found = parallel(DTensor.from_local(mine, mesh, [Shard(0)]))
    wanted = model(tokens(0))
    if not isinstance(found, DTensor) or tuple(found.placements) != (Shard(0),):
        return f"the output is {type(found)}"
    error = (found.full_tensor() - wanted).abs().max()
    found.square().mean().backward()
    wanted.square().mean().backward()
    for mine, theirs in zip(parallel.parameters(), model.parameters(), strict=True):
        assert isinstance(mine.grad, DTensor)
        assert theirs.grad is not None
        error = max(error, (mine.grad.full_tensor() - theirs.grad).abs().max())
    return "" if error < 1e-6 else f"error {error:.1e}"


def put_together(folder: Path) -> str:
    """Puts DTensors together, and hands over one that lies otherwise than it is read."""
    del folder
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    rank, problems = dist.get_rank(), []
    whole = torch.arange(15.0).reshape(5, 3)
    cut = [(Shard(dim), whole.tensor_split([3 - dim], dim)[rank]) for dim in (0, 1)]
    pending = [(Partial(kind), whole * (rank + 1)) for kind in ("sum", "avg", "max")]
    wanted = (whole, whole, whole * 3, whole * 1.5, whole * 2, whole)
    with patch.object(DTensor, "full_tensor"), patch.object(DTensor, "redistribute"):
        for (placement, piece), right in zip(
            (*cut, *pending, (Replicate(), whole)), wanted, strict=True
        ):
            given = DTensor.from_local(
                piece, mesh, [placement], run_check=False, shape=whole.shape, stride=(3, 1)
            )
            if not torch.equal(whole_of(given), right):
                problems.append(str(placement))
        parallel = quietly(tiny(), mesh=mesh, strategy="ddp:dp")
        found = parallel(DTensor.from_local(tokens(0).chunk(2, 1)[rank], mesh, [Shard(1)]))
    if not torch.allclose(found, tiny()(tokens(0)), atol=1e-5):
        problems.append("a batch that is split by columns")
    turned = DeviceMesh("cpu", torch.tensor([1, 0]), mesh_dim_names=("dp",))
    for given in (
        lambda: quietly(tiny(), mesh=turned, strategy="ddp:dp"),
        lambda: parallel(DTensor.from_local(tokens(0), turned, [Replicate()])),
    ):
        try:
            given()
            problems.append("ranks that descend")
        except InvalidInputError as error:
            if "torch mixes up the pieces of DTensors" not in str(error):
                problems.append(str(error))
    local = quietly(tiny(), mesh=turned, strategy="fsdp:dp", parameters="local")
    error = float((local(tokens(0)) - tiny()(tokens(0))).detach().abs().max())
    return "\n".join(problems + ([] if error < 1e-5 else [f"local: {error:.1e}"]))


def mismatched(folder: Path) -> str:
    """Returns what parallelize says to a mesh of another size than the job."""
    del folder
    try:
        autopar.parallelize(tiny(), tokens(0), mesh="dp=2,tp=2")
    except autopar.AutoparError as error:
        return str(error)
    return ""


def diverged(folder: Path) -> list[str]:
    """Returns what calls say to batches of different shapes on the ranks, and to other modes.

    Of the first, both shapes are new; then one rank knows its shape, then both do.
    """
    del folder
    parallel = quietly(tiny(), mesh="dp=2", strategy="ddp:dp")
    parallel(tokens(0, batch=6))
    rank = dist.get_rank()
    said = [_refused(parallel, tokens(0, batch=2 + rank)), _refused(parallel, tokens(0, 6 + rank))]
    parallel(tokens(0, batch=7))
    said.append(_refused(parallel, tokens(0, batch=6 + rank)))
    parallel.train(rank == 0)
    said.append(_refused(parallel, tokens(0, batch=6)))
    return said


def any_batch(folder: Path) -> tuple[list[str], int, list[str]]:
    """Trains and evaluates at any size, whole batches and parts.

    Returns:
        What differs, the number of programs, and what is said of other sizes.
    """
    del folder
    alone = tiny()
    parallel = quietly(tiny(), mesh="dp=2", strategy="fsdp:dp", dynamic=ANY)
    optimizers = [adamw(each) for each in (alone, parallel)]
    problems, refused = [], []
    for batch, length in ((4, 6), (5, 6), (3, 2), (1, 1)):
        ids = tokens(batch, batch)[:, :length].contiguous()
        losses = []
        for model, optimizer in zip((alone, parallel), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(model(ids).square().mean())
            losses[-1].backward()
            optimizer.step()
        problems += far(f"loss of {batch}x{length}", *losses)
        long = torch.zeros(batch, 7, dtype=torch.int64)
        refused.append(_refused(parallel, long))
    refused[1:] = [_refused(parallel, tokens(0, 3 + dist.get_rank()))]
    for model in (alone, parallel):
        model.eval()
    with torch.no_grad():
        for batch in (1, 5, 2):
            ids = tokens(batch, batch)
            block = ids.split(-(-batch // 2))[dist.get_rank() :][:1]
            part = block[0] if block else ids[:0]
            wanted = alone(ids)
            problems += far(f"eval of {batch}", parallel(ids), wanted)
            problems += far(f"parts of {batch}", parallel(part, local=True), wanted)
    return problems, len(parallel._parallel.runner.variants), refused


def far(what: str, found: Tensor, wanted: Tensor) -> list[str]:
    """Returns that tensors differ, if they do."""
    error = (found - wanted).abs().max().item()
    return [f"{what}: {error:.1e}"] if error > 1e-5 else []


def as_wished(folder: Path) -> str:
    """Trains with all that may be said of how to compile; returns what differs."""
    plan = folder / "plan.yaml"
    plan.write_text("mesh: dp=2\nstrategy: ddp:dp\nshard:\n  up.weight: [dp, null]\n")
    problems = []
    for options in (
        {"mesh": "dp=2", "plan": plan, "activations": {"attention": "recompute"}},
        {"mesh": "dp=2", "memory": "52KiB", "time_limit": 60, "effort": 0.5, "placement": "auto"},
        {"devices": 2, "cluster": "h100", "time_limit": 60},
    ):
        alone, parallel = tiny(), quietly(tiny(), **options)
        found = train(parallel, adamw(parallel))
        problems += differences(found, train(alone, adamw(alone)), parallel, alone)
        wanted = alone.eval()(tokens(4, batch=5)).detach()
        error = (parallel.eval()(tokens(4, batch=5)).detach() - wanted).abs().max()
        problems += [f"{options}: eval {error:.1e}"] if error > 1e-5 else []
        if "plan" in options and parallel.up.weight.placements != (Shard(0),):
            problems.append(f"the plan isn't followed: {parallel.up.weight.placements}")
    return "\n".join(problems)


def planned_once(folder: Path) -> tuple[int, list[int]]:
    """Returns how many programs this rank compiled for two modes, and what rank 0 did."""
    del folder
    with patch.object(compiling, "compile_program", wraps=compiling.compile_program) as compiled:
        parallel = quietly(tiny(), mesh="dp=2")
        parallel.eval()(tokens(0))
    counts: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(counts, compiled.call_count)
    return len(parallel._parallel.runner.variants), counts


def failed(folder: Path) -> list[str]:
    """Returns what a rank says where rank 0 can't plan, and where ranks ask for different things.

    After each of them the job goes on.
    """
    del folder
    rank = dist.get_rank()
    said = [_told(shard={"up.weight": ["dp", "dp"]})]
    with patch.object(compiling, "compile_program", side_effect=OSError("no space")):
        said.append(_told())
    said.append(_told(strategy="fsdp:dp" if rank else "ddp:dp"))
    said.append(_told(Branching() if rank else None))
    more = tiny()
    more.more = nn.Linear(2, 2)
    said.append(_told(more if rank else None))
    return [*said, _told()]


class Branching(TinyGPT):
    """Goes a way that is drawn by lot, so that it has no program."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids if torch.rand(()) > 0.5 else -ids)


def _told(model: nn.Module | None = None, **options: Any) -> str:
    try:
        quietly(model or tiny(), mesh="dp=2", **options)
    except (autopar.AutoparError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _refused(parallel: nn.Module, ids: Tensor) -> str:
    try:
        parallel(ids)
    except autopar.AutoparError as error:
        return str(error)
    return ""


def losses_alone(folder: Path) -> str:
    """Trains with the loss as the only output, and with all of them; returns what differs."""
    del folder
    gathers = []
    problems = []
    for outputs in (["loss"], "global"):
        alone = Scored()
        parallel = quietly(alone, mesh="dp=2", strategy="ddp:dp", outputs=outputs)
        found, wanted = parallel(tokens(0)), alone(tokens(0))
        if (found["logits"] is None) == (outputs == "global"):
            problems.append(f"{outputs}: the logits are {type(found['logits'])}")
        found["loss"].backward()
        wanted["loss"].backward()
        for mine, theirs in zip(parallel.parameters(), alone.parameters(), strict=True):
            assert isinstance(mine.grad, DTensor)
            torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad)
        first = parallel._parallel.runner.compiler.first
        assert first is not None
        kinds = [op.kind for op in first.deployment.programs[0].main.ops]
        gathers.append(kinds.count("comm.all_gather"))
    # The loss is a sum; the logits, and where they are largest, have to be gathered.
    return "\n".join(problems) if gathers == [0, 2] else f"all_gathers: {gathers}"


def through_torch_compile(folder: Path) -> str:
    """Trains through `torch.compile`; returns what differs."""
    del folder
    alone = tiny()
    parallel = quietly(tiny(), mesh="tp=2", strategy="tensor:tp", torch_compile=True)
    found = train(parallel, adamw(parallel))
    return "\n".join(differences(found, train(alone, adamw(alone)), parallel, alone))


class OfFloats(nn.Module):
    """Looks numbers up that aren't integers, which aren't looked at before."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table(x.long())
        return found


def made_often(folder: Path) -> dict[str, Any]:
    """Makes modules one after another, one of which fails; counts what the process holds."""
    del folder
    held = []
    for at in range(6):
        parallel = quietly(tiny(), mesh="dp=2", strategy="fsdp:dp" if at % 2 else "ddp:dp")
        parallel(tokens(0)).sum().backward()
        del parallel
        gc.collect()
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        held.append((threading.active_count(), descriptors))
    places = torch.zeros(4, 2)
    failing = autopar.parallelize(OfFloats(), places, mesh="dp=2", strategy="ddp:dp")
    try:
        failing(places + 1000)
        said = ""
    except RuntimeFailure as error:
        said = str(error)
    again = quietly(tiny(), mesh="dp=2", strategy="ddp:dp")
    watch = again._parallel.runner.job.watched
    assert watch is not None
    wrong = float((again(tokens(0)) - tiny()(tokens(0))).detach().abs().max())
    return {"held": held[1:], "failed": said, "wrong": wrong, "watched": watch.supervisor.watches}


CHECKS: Mapping[str, Callable[[Path], Any]] = {
    "tensor": lambda _: trained("tp=2", "tensor:tp", ("dtensor", "local")),
    "fsdp": lambda _: trained("dp=2", "fsdp:dp", ("dtensor",)),
    "2x2": lambda _: trained("dp=2,tp=2", "fsdp:dp,tensor:tp", ("dtensor", "local")),
    "checkpointed": checkpointed,
    "whole": whole,
    "accumulated": accumulated,
    "dropped": dropped,
    "handed": handed,
    "mismatched": mismatched,
    "diverged": diverged,
    "any_batch": any_batch,
    "losses_alone": losses_alone,
    "planned_once": planned_once,
    "as_wished": as_wished,
    "failed": failed,
    "made_often": made_often,
    "put_together": put_together,
    "through_torch_compile": through_torch_compile,
}
