"""What tests of parallel modules in pipelines run in real processes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import autopar
from autopar import ProcessMesh, annotate
from autopar.base.errors import InvalidInputError
from autopar.ir.collectives import is_collective
from autopar.runtime.job.processes import Processes
from autopar.runtime.state.wholes import whole_of
from tests.parallel.pretrained import batch as labelled
from tests.parallel.pretrained import differing, model_of
from tests.parallel.targets import far, join
from tests.parallel.tiny import Scored, tiny, tokens, train

EPS = 1e-4
"""Of AdamW: gradients of rounding are far smaller."""


class Deep(nn.Module):
    """Skips stages, returns a part of an early one, keeps statistics and a count, draws."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(dropout)
        self.head, self.early = nn.Linear(8, 3), nn.Linear(8, 3)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns what the first layer and what the last one says."""
        first = x
        for at, layer in enumerate(self.layers):
            x = self.dropout(torch.tanh(layer(x)))
            first = x if at == 0 else first
            x = self.norm(x) if at == 2 else x
        if self.training:
            self.count.add_(1)
        return {"y": self.head(x + first), "early": self.early(first), "best": x.argmax(-1)}


class Marked(nn.Module):
    """Four stages, which are laid out in turns on two processes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns what the last layer makes."""
        for at, layer in enumerate(self.layers):
            with annotate.pipeline_stage(at):
                x = torch.tanh(layer(x))
        return {"y": x, "early": x}


class Pinned(Marked):
    """Marks of slices say where the stages are."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns what the last layer makes."""
        mesh = ProcessMesh([0, 1], dim_names=["pp"])
        for at, layer in enumerate(self.layers):
            x = annotate.shard(x, mesh["pp", at // 2], [None, None])
            x = torch.tanh(layer(x))
        return {"y": x, "early": x}


class Beside(nn.Module):
    """Two branches side by side: on two columns of three, and on the last one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns what both branches make together, and what one does."""
        first = torch.tanh(self.first(annotate.shard_mask(x, [1, 0, 1])))
        second = torch.tanh(self.second(annotate.shard_mask(x, [0, 1, 0])))
        return {"y": first * second, "early": first}


def rows(number: int, count: int = 7) -> Tensor:
    """Returns the global batch of a step, which microbatches don't divide."""
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(number))


def of_both(found: Mapping[str, Tensor]) -> Tensor:
    """Returns the user's loss of all outputs that have gradients."""
    return found["y"].square().mean() + found["early"].sum()


Loss = Callable[[Any], Tensor]
MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], Loss]] = {
    "tied": (tiny, lambda number: tokens(number, 7), lambda out: out[:, :-1].square().mean()),
    "scored": (Scored, lambda number: tokens(number, 5), lambda out: out["loss"]),
    "deep": (Deep, rows, of_both),
    "marked": (Marked, rows, of_both),
    "pinned": (Pinned, rows, of_both),
    "beside": (Beside, rows, of_both),
}


def quietly(model: nn.Module, example: Any, **options: Any) -> Any:
    """Parallelizes without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return autopar.parallelize(model, example, **{"pipeline": "pp", **options})


def several(processes: Processes, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Runs several of the functions below in one job, and returns what each returned."""
    join(processes)
    return {name: CHECKS[name](folder / name) for name in names}


def compared(processes: Processes, cases: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Trains and evaluates models alone and in a pipeline; returns what differs."""
    join(processes)
    return [f"{name} {kw}: {each}" for name, kw in cases for each in trained(name, **kw)]


def trained(name: str, **options: Any) -> list[str]:
    """Trains and evaluates a model alone and in a pipeline; returns what differs."""
    make, batch, loss = MODELS[name]
    options = {"microbatches": 3, **options}
    alone, parallel = make(), quietly(make(), batch(0), **options)
    found = [_train(each, batch, loss) for each in (parallel, alone)]
    problems = far("losses", *found) + states_differ(parallel, alone)
    problems += evaluated(parallel, alone, batch(9))
    pieces = [p.to_local() if isinstance(p, DTensor) else p for p in parallel.parameters()]
    whole = sum(p.numel() for p in alone.parameters())
    return problems + ([] if sum(map(Tensor.numel, pieces)) < whole else ["a rank holds all"])


def _train(model: Any, batch: Callable[[int], Tensor], loss: Loss) -> Tensor:
    """Trains, and returns losses and norms of gradients."""
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=EPS), []
    for number in range(3):
        # Two batches of other sizes, of which gradients are added up.
        for part in batch(number).split(4):
            value = loss(model(part))
            value.backward()  # type: ignore[no-untyped-call]
            found.append(value.detach())
        found.append(_clip(model, 0.5))
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(found)


def _clip(model: Any, norm: float) -> Tensor:
    if isinstance(model, autopar.ParallelModule):
        return model.clip_grad_norm_(norm)
    return nn.utils.clip_grad_norm_(model.parameters(), norm)


def states_differ(parallel: Any, alone: nn.Module) -> list[str]:
    """Returns which parameters and buffers differ."""
    whole = parallel.full_state_dict()
    pairs = alone.state_dict().items()
    return [each for name, wanted in pairs for each in far(name, whole[name], wanted)]


def evaluated(parallel: Any, alone: nn.Module, batch: Tensor) -> list[str]:
    """Returns which outputs differ in evaluation, of which nothing is moved but activations."""
    alone.eval()
    parallel.eval()
    with torch.no_grad():
        found, wanted = map(_tensors, (parallel(batch), alone(batch)))
    pairs = enumerate(zip(found, wanted, strict=True))
    problems = [each for at, pair in pairs for each in far(f"output {at}", *pair)]
    main = parallel._parallel.runner.variants[-1].program.main
    sent = {name for op in main.ops if is_collective(op.kind) for name in op.operands}
    options = parallel._parallel.runner.compiler.options
    only_stages = options.mesh.ndim == 1 and not options.widths
    moved = sent.intersection(main.inputs) if only_stages else ()
    return problems + [f"{name} is moved" for name in moved]


def _tensors(outputs: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return [each.float() for each in leaves if isinstance(each, Tensor)]


def checkpointed(folder: Path) -> list[str]:
    """Goes on from a checkpoint of torch's, in other stages, and without any."""
    problems = []
    first = quietly(tiny(), tokens(0), mesh="pp=2,dp=2", strategy="fsdp:dp", microbatches=2)
    optimizer = _adamw(first)
    train(first, optimizer, _clipped(first), range(2))
    dcp.save(_state(first, optimizer), checkpoint_id=folder)
    alone = tiny()
    wanted = train(alone, _adamw(alone), steps=range(4))[2:]
    for options in ({"mesh": "pp=4"}, {"mesh": "pp=2,dp=2", "strategy": "data:dp"}, {}):
        other = quietly(tiny(), tokens(0), **options) if options else _without_stages()
        optimizer = _adamw(other)
        state = _state(other, optimizer)
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(
            other, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        found = train(other, optimizer, _clipped(other), range(2, 4))
        problems += far(f"{options}", torch.tensor(found), torch.tensor(wanted))
        problems += states_differ(other, alone) if options == {} else []
    return problems


def _without_stages() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return autopar.parallelize(tiny(), tokens(0), mesh="dp=4", strategy="fsdp:dp")


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=EPS)


def _clipped(module: Any) -> Callable[..., Any]:
    return lambda _, norm: module.clip_grad_norm_(norm)


def _state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model, state = get_state_dict(module, optimizer)
    return {"model": model, "optimizer": state}


def saved(folder: Path) -> list[str]:
    """Saves models of `transformers`, and loads them in all ways; returns what differs."""
    problems = []
    for kind in ("gpt2", "t5"):
        for parameters in ("dtensor", "local"):
            place = folder / kind / parameters
            options = {"mesh": "pp=2", "microbatches": 2, "parameters": parameters}
            parallel, other = (
                quietly(model_of(kind, seed), labelled(), **options) for seed in (0, 1)
            )
            alone = model_of(kind)
            losses = [model(**labelled()).loss for model in (parallel, alone)]
            problems += far(f"{kind}", *losses)
            for model, loss in zip((parallel, alone), losses, strict=True):
                loss.backward()
                torch.optim.SGD(model.parameters(), lr=0.1).step()
            problems += states_differ(parallel, alone)
            wanted = parallel.full_state_dict()
            parallel.save_pretrained(place)
            again = type(alone).from_pretrained(place)
            problems += [f"{kind}: {each}" for each in differing(again.state_dict(), wanted)]
            other.load_weights(place)
            problems += [f"{kind} taken: {e}" for e in differing(other.full_state_dict(), wanted)]
            other.load_state_dict(model_of(kind).state_dict())
            other.load_state_dict(wanted)
            problems += [f"{kind} given: {e}" for e in differing(other.full_state_dict(), wanted)]
            dist.barrier()
    return problems


def drawn(folder: Path) -> list[list[Any]]:
    """Returns the outputs of two calls with dropout, for each number of microbatches."""
    del folder
    found = []
    for microbatches in (1, 3):
        parallel = quietly(Deep(0.5), rows(0), mesh="pp=2", microbatches=microbatches)
        found.append([parallel(rows(number))["y"].tolist() for number in range(2)])
    return found


def handed(folder: Path) -> list[str]:
    """Gives each rank its part of a batch of any size, and leaves outputs split, as DTensors."""
    del folder
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    part, problems = mesh.get_local_rank("dp"), []
    for microbatches in (1, 2):
        options = {"strategy": "data:dp", "outputs": "dtensor", "microbatches": microbatches}
        sizes = {"ids": {0: "rows=4:64"}}
        made = quietly(tiny(), tokens(0), mesh=mesh, dynamic=sizes, **options)
        parallel, alone = copy.deepcopy(made), tiny()
        for count in (4, 7):
            ids = tokens(1, count)
            mine = ids.split(-(-count // 2))[part]
            # What is cut into microbatches every rank is given whole.
            found = parallel(ids) if microbatches > 1 else parallel(mine, local=True)
            wanted = alone(ids)
            problems += far("output", whole_of(found), wanted)
            found.square().mean().backward()
            wanted.square().mean().backward()
        gradients = zip(parallel.named_parameters(), alone.parameters(), strict=True)
        for (name, mine), theirs in gradients:
            assert theirs.grad is not None
            whole = mine.grad.full_tensor()
            problems += far(name, whole, theirs.grad) if whole.numel() else []
        variants = parallel._parallel.runner.variants
        problems += [] if len(variants) == 1 else [f"{len(variants)} programs"]
    try:
        parallel(mine, local=True)
    except InvalidInputError as error:
        problems += [] if "hand over the global batch" in str(error) else [str(error)]
    return problems


def refused(folder: Path) -> list[str]:
    """Returns what is said to calls that can't be made; then makes one that can."""
    del folder
    parallel, said = quietly(tiny(), tokens(0), mesh="pp=2", microbatches=2), []
    for given in (tokens(0) + 100, tokens(dist.get_rank())):
        try:
            parallel(given)
        except autopar.AutoparError as error:
            said.append(str(error))
    parallel(tokens(0)).sum().backward()
    try:
        nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
    except RuntimeError as error:
        said.append(str(error))
    return said + far("after", parallel(tokens(0)), tiny()(tokens(0)))


CHECKS: Mapping[str, Callable[[Path], Any]] = {
    "checkpointed": checkpointed,
    "saved": saved,
    "drawn": drawn,
    "handed": handed,
    "refused": refused,
    "through_torch_compile": lambda _: trained("tied", mesh="pp=2", torch_compile=True),
}
