"""What tests run in real processes, of parallel modules whose ranks bring different things."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from autopar.runtime.job.processes import Processes
from tests.parallel.targets import join, quietly
from tests.parallel.tiny import VOCABULARY, TinyGPT, tiny, tokens


def differing(processes: Processes, folder: Path) -> dict[str, Any]:
    """Calls a module with what differs between ranks, and with what is right."""
    join(processes)
    rank = processes.rank
    parallel = quietly(tiny(), mesh="x=3", strategy="tensor:x")
    weights = folder / f"{rank}.safetensors"
    if rank != 1:
        zeros = {name: torch.zeros_like(each) for name, each in tiny().named_parameters()}
        save_file(zeros, weights)
    right = tokens(0)
    found = {
        "sampler": said(parallel, tokens(rank)),
        "one": said(parallel, right.flip(0) if rank == 2 else right),
        "none": said(parallel) if rank == 1 else said(parallel, right),
        "right": said(parallel, right),
        "wrong": float((parallel(right) - tiny()(right)).detach().abs().max()),
        "local": said(parallel, right, local=rank == 0),
        "flag": said(parallel, right, local="yes" if rank == 2 else False),
        "weights": answered(lambda: parallel.load_weights(weights)),
        "kept": float((parallel(right) - tiny()(right)).detach().abs().max()),
        "norms": answered(lambda: parallel.clip_grad_norm_(rank + 1.0)),
        "none_norm": answered(lambda: parallel.clip_grad_norm_(None if rank else 1.0)),
        "everywhere": answered(lambda: parallel.full_state_dict(everywhere=rank == 0)),
        "states": answered(
            lambda: parallel.full_state_dict() if rank else parallel.clip_grad_norm_(1.0)
        ),
        "after": said(parallel, right),
    }
    unchecked = quietly(tiny(), mesh="x=3", strategy="tensor:x", check_inputs=False)
    found["unchecked"] = said(unchecked, tokens(rank))
    dropping = quietly(tiny(dropout=0.5), mesh="x=3", strategy="tensor:x")
    dropping.random_calls = rank
    found["drawn"] = said(dropping, right)
    found["seeds"] = told(seed=rank)
    found["options"] = told(torch_compile=rank == 1)
    floats = quietly_floats("x=3", "tensor:x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batch = torch.ones(4, 6)
        for _ in range(3):
            said(floats, batch * (1 + 1e-7 * rank))
    found["rounding"] = [str(each.message) for each in caught]
    found["values"] = said(quietly_floats("x=3", "tensor:x"), batch * (1 + 1e-2 * rank))
    return found


def answered(act: Callable[[], Any]) -> str:
    """Returns the class and text of the error that an act ends with, or nothing."""
    try:
        act()
    except autopar.AutoparError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def quietly_floats(mesh: str, strategy: str) -> autopar.ParallelModule:
    """Returns a parallel module that takes floats."""
    torch.manual_seed(0)
    return autopar.parallelize(nn.Linear(6, 12), torch.ones(4, 6), mesh=mesh, strategy=strategy)


def told(**options: Any) -> str:
    """Returns what `parallelize` says to options."""
    try:
        quietly(tiny(dropout=0.5), mesh="x=3", **options)
    except autopar.AutoparError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def said(module: nn.Module, *args: Any, **kwargs: Any) -> str:
    """Returns the class and text of the error that a call ends with, or nothing."""
    try:
        module(*args, **kwargs)
    except autopar.AutoparError as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Options(TinyGPT):
    """Takes further arguments, of which it knows nothing."""

    def forward(self, ids: Tensor, **kwargs: Any) -> Tensor:
        assert not kwargs, kwargs
        return super().forward(ids)


class Own(TinyGPT):
    """Has an argument `local` of its own."""

    def forward(self, ids: Tensor, local: bool = False) -> Tensor:
        found = super().forward(ids)
        return -found if local else found


def in_parts(processes: Processes, mesh: str, strategy: str, axis: str) -> list[str]:
    """Trains on this rank's parts of batches; returns what differs from one device."""
    join(processes)
    torch.manual_seed(0)
    model = Options()
    parallel = quietly(model, mesh=mesh, strategy=strategy)
    sizes = dict(part.split("=") for part in mesh.split(","))
    count = int(sizes[axis])
    names = list(sizes)
    at = processes.rank
    for name in reversed(names):
        at, place = divmod(at, int(sizes[name]))
        if name == axis:
            mine = place
    problems = []
    for number, batch in enumerate((4, 7, 4, 5)):
        ids = tokens(number, batch=batch)
        parts = list(ids.chunk(count))
        part = parts[mine] if mine < len(parts) else ids[:0]
        for module, given in ((model, {}), (parallel, {"local": True})):
            module.zero_grad()
            logits = module(part if given else ids, **given)
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        problems += _gradients(parallel, model, f"batch {batch}")
    with torch.no_grad():
        problems += [] if said(parallel, tokens(9), local=False) == "" else ["not global"]
    wrong = tokens(0, batch=3 if mine else 1)
    return [*problems, said(parallel, wrong, local=True), said(parallel, tokens(0))]


def _gradients(parallel: nn.Module, model: nn.Module, what: str) -> list[str]:
    """Returns where gradients differ."""
    problems = []
    for (name, mine), theirs in zip(parallel.named_parameters(), model.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        found = mine.grad.full_tensor() if isinstance(mine.grad, DTensor) else mine.grad
        error = (found - theirs.grad).abs().max() / theirs.grad.abs().max()
        if not error < 1e-5:
            problems.append(f"{what}, {name}: {error:.1e}")
    return problems


def own_argument(processes: Processes) -> list[str]:
    """Calls a model that has an argument `local`, and one whose inputs need gradients in parts."""
    join(processes)
    torch.manual_seed(0)
    model = Own()
    parallel = quietly(model, mesh="dp=2", strategy="ddp:dp")
    ids = tokens(0)
    problems = []
    for local in (False, True):
        if (parallel(ids, local=local) - model(ids, local=local)).abs().max() > 1e-5:
            problems.append(f"local={local} is not the model's")
    torch.manual_seed(0)
    linear = nn.Linear(6, 12)
    floats = autopar.parallelize(
        linear, torch.ones(4, 6), mesh="dp=2", strategy="ddp:dp", local=True
    )
    whole = torch.randn(5, 6)
    dist.broadcast(whole, 0)
    part = whole.chunk(2)[processes.rank].clone().requires_grad_()
    whole.requires_grad_()
    for module, given in ((linear, whole), (floats, part)):
        module(given).square().sum().backward()
    assert whole.grad is not None
    assert part.grad is not None
    wanted = whole.grad.chunk(2)[processes.rank]
    if part.grad.shape != wanted.shape or (part.grad - wanted).abs().max() > 1e-5:
        problems.append("the part's gradient is not that of the whole")
    wider = torch.ones(2, 6, VOCABULARY)
    problems.append(said(floats, wider))
    problems.append(
        said(floats, DTensor.from_local(part.detach(), floats._parallel.runner.compiler.mesh))
    )
    problems.append(said(floats, whole.detach(), local=False))
    return problems
