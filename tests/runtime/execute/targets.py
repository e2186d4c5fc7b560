"""What tests run in real processes; kept apart so that the processes can import it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.base.errors import AutoparError, InvalidInputError
from autopar.ir.program import Op
from autopar.runtime.api import load
from autopar.runtime.checkpoint import checkpoint
from autopar.runtime.collectives.async_collectives import end_sum, start_sum
from autopar.runtime.collectives.communication import COLLECTIVES
from autopar.runtime.collectives.groups import Group
from autopar.runtime.collectives.reference import collective
from autopar.runtime.execute import generate
from autopar.runtime.execute.distributed import JobRank
from autopar.runtime.execute.session import Session
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.verdicts import NonFiniteLoss
from tests.runtime.collectives.cases import LONG, cases

Batch = tuple[Tensor, Tensor]


def zeros(processes: Processes, count: int) -> bytes:
    """Returns this many bytes."""
    del processes
    return bytes(count)


def groups_with_variant(processes: Processes, build: Path) -> tuple[int, int]:
    """Returns how many process groups there are for a program, and for two that need the same."""
    with JobRank(build, backend="gloo", processes=processes) as rank:
        first = len(distributed_c10d._world.pg_map)
        rank.variant(rank.deployment)
        return first, len(distributed_c10d._world.pg_map)


def compare_collectives(processes: Processes) -> list[str]:
    """Returns the cases in which a rank's result isn't what the definition says."""
    _join(processes)
    size, rank = processes.size, processes.rank
    tag = dist.group.WORLD.group_name
    wrong = []
    orders = (tuple(range(size)), tuple(reversed(range(size))))
    # Gloo scatters reductions too, so the way of nccl can be tested with it.
    for order, backend in itertools.product(orders, ("gloo", "nccl")):
        group = Group(tag, size, order.index(rank), order, backend)
        for op, tensors in cases(size):
            if backend == "nccl" and op.kind != "comm.reduce_scatter":
                continue
            expected = collective(op, tensors)[group.position]
            found = COLLECTIVES[op.kind](tensors[group.position], **_arguments(op), group=group)
            if problem := _difference(found, expected):
                shapes = [list(t.shape) for t in tensors]
                wrong.append(f"{_describe(op)} {tensors[0].dtype} {shapes} {group}: {problem}")
    dist.destroy_process_group()
    return wrong


def _join(processes: Processes) -> None:
    timeout = timedelta(seconds=30)
    store = processes.connect(Patience(30.0))
    dist.init_process_group(
        "gloo", store=store, rank=processes.rank, world_size=processes.size, timeout=timeout
    )


def late_to_close(processes: Processes, build: Path, folder: Path) -> None:
    """Opens a session that rank 1 closes when rank 0, which serves the store, has long ended."""
    with (folder / f"stderr{processes.rank}").open("w") as file:
        os.dup2(file.fileno(), 2)
    with Session(build, timeout=20.0, processes=processes):
        time.sleep(2.0 * processes.rank)


def connected_in_vain(processes: Processes, served: bool) -> None:
    """Connects rank 1 to a place where somebody listens who ends before he has answered."""
    listener = socket.create_server((processes.address, processes.port))

    def end() -> None:
        taken = listener.accept()[0]
        time.sleep(0.3)
        listener.close()
        taken.close()

    threading.Thread(target=end, daemon=True).start()
    replace(processes, rank=1, served=served).connect(Patience(6.0))


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


def run_program(
    processes: Processes,
    builds: Sequence[Path],
    inputs: Mapping[str, Tensor],
    timeout: float = 20.0,
    start_timeout: float = 60.0,
    **options: Any,
) -> Any:
    """Returns what a session returns on this rank: global outputs and local pieces.

    Args:
        processes: Who this process is.
        builds: The build, or one per rank.
        inputs: Global inputs.
        timeout, start_timeout: Of the session.
        options: Of the session.
    """
    build = builds[processes.rank % len(builds)]
    limits = {"timeout": timeout, "start_timeout": start_timeout}
    with Session(build, processes=processes, **limits, **options) as session:
        return _portable(session.run(inputs)), _portable(session.run(inputs, gather=False))


def run_compiled(processes: Processes, *args: Any) -> Any:
    """As `run_program`, through `torch.compile` without its slow C++ compiler."""
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    return run_program(processes, *args, torch_compile=True)


def initialized(
    processes: Processes, build: Path, make_model: Callable[[], nn.Module], batch: Batch
) -> float:
    """Returns the first loss of a trainer that a constructor initialized.

    Only the generator of rank 0 has the seed that counts.
    """
    torch.manual_seed(processes.rank)
    with load(build, init=make_model, timeout=20.0, processes=processes) as trainer:
        return float(trainer.step(batch))


def called(
    processes: Processes, build: Path, make_model: Callable[[], nn.Module], x: Tensor
) -> Any:
    """Returns what a forward pass makes of an input, by a rank that a constructor initialized."""
    try:
        with load(build, timeout=20.0, processes=processes) as session:
            session(x)
    except InvalidInputError as error:
        reason = str(error)
    torch.manual_seed(0)
    with load(build, init=make_model, timeout=20.0, processes=processes) as session:
        return reason, session(x).numpy()


def wrapped(processes: Processes, build: Path, batches: Sequence[Batch]) -> Any:
    """Returns the placements of a trainer's DTensors, and what differs from its state after steps.

    They are made before the steps, so that they show whether their memory is that of the state.
    """
    with load(build, timeout=20.0, processes=processes) as trainer:
        tensors = trainer.dtensors()
        for batch in batches:
            trainer.step(batch)
        again = trainer.dtensors(next(iter(tensors.values())).device_mesh)
        other = DeviceMesh("cpu", torch.tensor([1, 0]))
        try:
            trainer.dtensors(other)
            refusal = ""
        except InvalidInputError as error:
            refusal = str(error)
        state = trainer.state_dict()
        shared = {name: tensors[name] for name in ("up.weight", "down.weight", "down.bias")}
        problems = [
            name
            for name, tensor in (*shared.items(), *again.items())
            if not torch.equal(tensor.full_tensor(), state[name])
        ]
        placed = {name: str(tensor.placements) for name, tensor in tensors.items()}
    return placed, [*problems, refusal]


def train(
    processes: Processes, build: Path, batches: Sequence[Batch], folder: Path, local: int = 0
) -> Any:
    """Trains, halfway from a checkpoint, and returns the losses and the state that one sees.

    Args:
        processes: Who this process is.
        build: The training build.
        batches: Global batches.
        folder: Where checkpoints and weights go.
        local: For how many of the batches the rank is handed only its slice.
    """
    losses = []
    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        for at, (x, target) in enumerate(batches):
            if at == 2:
                trainer.save_checkpoint(folder / "checkpoint")
                trainer.load_checkpoint(folder / "checkpoint")
            if at < local:
                x, target = (t.chunk(processes.size)[processes.rank] for t in (x, target))
            losses.append(trainer.step((x, target), local=at < local).item())
        trainer.save_weights(folder / "weights.safetensors")
        state, first = trainer.state_dict(), trainer.state_dict(rank0_only=True)
        assert first.keys() == (state.keys() if processes.rank == 0 else set())
        return losses, _portable(state), _portable(trainer.fetched())


def losses_of(processes: Processes, build: Path, batches: Sequence[Batch]) -> list[float]:
    """Trains and returns the losses."""
    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        return [trainer.step(batch).item() for batch in batches]


def refuse(processes: Processes, build: Path, batch: Batch) -> Any:
    """Trains on a batch without finite loss, then on one of the wrong shape."""
    x, target = batch
    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        before = trainer.state_dict()
        found = []
        for wrong in ((x * float("nan"), target), (x, target), (x[1:], target)):
            try:
                found.append(trainer.step(wrong).item())
            except NonFiniteLoss as error:
                after = trainer.state_dict()
                assert all(torch.equal(after[name], before[name]) for name in before)
                found.append(str(error))
            except InvalidInputError as error:
                found.append(str(error))
        for wrong in (build, build / "manifest.pb"):
            try:
                trainer.save_checkpoint(wrong)
            except InvalidInputError as error:
                found.append(str(error))
        return found


def disagree(processes: Processes, build: Path, given: Sequence[Batch]) -> Any:
    """Trains on another batch than the other rank, and then on the same one."""
    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        try:
            trainer.step(given[processes.rank])
        except InvalidInputError as error:
            return str(error), trainer.step(given[0]).item()
    return "", 0.0


def look_alone(processes: Processes, build: Path, batch: Batch) -> Any:
    """Trains two steps; between them rank 0 looks at what the first one computed."""
    with open_trainer(build, timeout=3.0, processes=processes) as trainer:
        trainer.step(batch)
        try:
            fetched = trainer.fetched() if processes.rank == 0 else {}
        except AutoparError as error:
            return str(error)
        return _portable(fetched), trainer.step(batch).item()


def look_late(processes: Processes, build: Path, batch: Batch) -> Any:
    """Looks on rank 0 at what a step computed, while rank 1 has long begun the next step."""
    with open_trainer(build, timeout=3.0, processes=processes) as trainer:
        trainer.step(batch)
        try:
            if processes.rank == 0:
                time.sleep(1.5)
                trainer.fetched()
            else:
                trainer.step(batch)
        except AutoparError as error:
            return str(error)


def die_in_checkpoint(processes: Processes, build: Path, batch: Batch, folder: Path) -> str:
    """Writes a checkpoint, and another one in which rank 1 is killed."""

    def die(*args: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with open_trainer(build, timeout=20.0, processes=processes) as trainer:
        trainer.save_checkpoint(folder)
        trainer.step(batch)
        if processes.rank == 1:
            checkpoint.write_rectangles = die
        trainer.save_checkpoint(folder)
    return "no error"


def train_compiled(processes: Processes, build: Path, batches: Sequence[Batch]) -> list[float]:
    """Trains through `torch.compile` without its slow C++ compiler."""
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    options: dict[str, Any] = {"processes": processes, "torch_compile": True}
    with open_trainer(build, timeout=60.0, **options) as trainer:
        return [trainer.step(batch).item() for batch in batches]


def _portable(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    # Tensors would travel as shared memory, which ends with the process.
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def fail_at(processes: Processes, build: Path, how: str, timeout: float, victim: int = 1) -> Any:
    """Runs a program on all ranks, of which one raises, hangs or is killed at `neg`."""

    def misbehave(self: Tensor) -> Tensor:
        if processes.rank != victim:
            return self
        if how == "raise":
            raise ValueError("out of luck\nand more")
        if how == "hang":
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)
        return self

    original = generate.fast_kernel
    generate.fast_kernel = lambda kind: misbehave if kind == "aten.neg.default" else original(kind)
    started = time.monotonic()
    try:
        with Session(
            build, timeout=timeout, processes=processes, on_failure=_exit_with_message
        ) as session:
            session.run({"x": torch.ones(2)})
        return "no error"
    except AutoparError as error:
        return str(error), time.monotonic() - started


def opened_otherwise(processes: Processes, build: Path, weights: Sequence[Path]) -> list[str]:
    """Returns what a session says to other weights on each rank, and to another option."""
    found = []
    for number, options in enumerate(
        ({"weights": weights[processes.rank]}, {"torch_compile": processes.rank == 1})
    ):
        here = replace(processes, prefix=f"job-{number}")
        try:
            Session(build, timeout=20.0, processes=here, **options)
        except AutoparError as error:
            found.append(str(error))
    return found


def _exit_with_message(failure: RankFailure) -> None:
    print(f"watch: {failure}", flush=True)
    os._exit(17)


def compare_captured(processes: Processes) -> tuple[list[str], list[str]]:
    """As `compare_collectives`, a sample of it through `torch.compile(fullgraph=True)`.

    Returns:
        The cases, and torch's collectives that were captured.
    """
    _join(processes)
    size, rank = processes.size, processes.rank
    group = Group(dist.group.WORLD.group_name, size, rank, tuple(range(size)), "gloo")
    names: set[str] = set()
    sample = {
        (op.kind, op.arg("monoid")): (op, tensors)
        for op, tensors in cases(size)
        if tensors[0].numel() and tensors[0].dtype == torch.float32
        if op.arg("monoid") in (None, "sum", "max")
    }

    def run_all(mine: list[Tensor]) -> list[Tensor]:
        return [
            COLLECTIVES[op.kind](x, **_arguments(op), group=group)
            for (op, _), x in zip(sample.values(), mine, strict=True)
        ]

    def recorded(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        names.update(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    captured = torch.compile(run_all, fullgraph=True, backend=aot_autograd(fw_compiler=recorded))
    results = captured([tensors[rank] for _, tensors in sample.values()])
    dist.destroy_process_group()
    wrong = [
        f"{_describe(op)}: {problem}"
        for (op, tensors), found in zip(sample.values(), results, strict=True)
        if (problem := _difference(found, collective(op, tensors)[rank]))
    ]
    return wrong, _of_torch(names)


def collectives_of_torch(processes: Processes) -> list[str]:
    """Returns torch's collectives that the runtime's are made of."""
    _join(processes)
    size, rank = processes.size, processes.rank
    group = Group(dist.group.WORLD.group_name, size, rank, tuple(range(size)), "gloo")
    with _Recorder() as recorder:
        for op, tensors in cases(size):
            COLLECTIVES[op.kind](tensors[rank], **_arguments(op), group=group)
        for rows in (1, LONG[0]):
            end_sum(start_sum(torch.ones(rows), group, free=True), 1, group)
    dist.destroy_process_group()
    return _of_torch(recorder.names)


def stressed(processes: Processes, collective: str, steps: int) -> int:
    """Returns how many collectives were right, of eight in each step that are under way at once."""
    from benchmarks.collective_stress import stress

    _join(processes)
    right = stress(collective, "several", steps, seed=0)
    dist.destroy_process_group()
    return right


def _of_torch(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if "c10d" in name)


class _Recorder(TorchDispatchMode):
    """Collects the names of all ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.names.add(str(op))
        return op(*args, **(kwargs or {}))


def _arguments(op: Op) -> dict[str, Any]:
    return {name: arg for name, arg in op.args if name not in ("self", "group")}


def fail_late(processes: Processes, build: Path) -> str:
    """Fails on rank 1 while rank 0 does something else, and returns what rank 0 then learns."""
    with Session(
        build, timeout=20.0, processes=processes, on_failure=_exit_with_message
    ) as session:
        inputs = {"x": torch.ones(2)}
        session.run(inputs)
        if processes.rank == 1:
            with session.reported():
                raise ValueError("out of luck")
        session.supervisor.board.first(10.0)
        # Longer than the watch gives a main thread that waits for other ranks.
        time.sleep(3.0)
        session.run(inputs)
    return "no error"


def save_where_nothing_can(processes: Processes, build: Path, batch: Batch, folder: Path) -> Any:
    """Saves weights to a place that isn't there and goes on; returns the error, and a loss."""
    with open_trainer(build, processes=processes, backend="gloo", timeout=20.0) as trainer:
        found = ""
        try:
            trainer.save_weights(folder / "absent" / "w.safetensors")
        except InvalidInputError as error:
            found = str(error)
        trainer.save_weights(folder / "w.safetensors")
        return found, trainer.step(batch).item()


def saves_folders(processes: Processes, build: Path, given: Sequence[Batch], folder: Path) -> str:
    """Saves weights as folders and reads them again; returns what differs."""
    with open_trainer(build, processes=processes, backend="gloo") as trainer:
        for batch in given:
            trainer.step(batch)
        trainer.save_weights(folder / "many", max_shard_bytes=100)
        saved = trainer.state_dict()
        trainer.load_state_dict({name: torch.zeros_like(held) for name, held in saved.items()})
        dist.barrier()
        trainer.load_weights(folder / "many")
        found = trainer.state_dict()
        return ", ".join(name for name in saved if not torch.equal(found[name], saved[name]))


def run_calls(
    processes: Processes, build: Path, inputs: Sequence[Tensor], compiled: bool = False
) -> Any:
    """Returns what a session returns in one call after another."""
    if compiled:
        torch.compile = functools.partial(torch.compile, backend="aot_eager")
    options = {"timeout": 20.0, "processes": processes, "torch_compile": compiled}
    found = []
    with Session(build, backend="gloo", **options) as session:
        # Those that are given are in memory of all processes.
        for x in [each.clone() for each in inputs]:
            result = session(x)
            x.fill_(7.0)
            outputs = result if isinstance(result, dict) else {"output": result}
            found.append(_portable({k: v for k, v in outputs.items() if v is not None}))
    return found


def keep_state(processes: Processes, build: Path, inputs: Sequence[Tensor], folder: Path) -> Any:
    """Returns what a session returns before and after its state is saved, reset and loaded.

    In order: three calls, and after the first a refused one that changes nothing; the second and
    the third again from a file, the first again after a reset; then the names of its state dict,
    and one more first call with another weight.
    """
    first, second, third = (each.clone() for each in inputs)
    with Session(build, backend="gloo", timeout=20.0, processes=processes) as session:
        found = [session(first)]
        with contextlib.suppress(InvalidInputError):
            session(first[:, :1])
            found.append(first)
        session.save_state(folder / "state.safetensors")
        found += [session(second), session(third)]
        session.load_state(folder / "state.safetensors")
        found += [session(second), session(third)]
        session.reset()
        found.append(session(first))
        state = session.state_dict()
        session.load_state_dict({**state, "unused": first, "key.bias": state["key.bias"] + 1})
        session.reset()
        found.append(session(first))
        return [each.numpy() for each in found], sorted(state)


def go_on(processes: Processes, build: Path, inputs: Sequence[Tensor], path: Path) -> Any:
    """Returns the second call's result, from the state that another job left if there is one."""
    with Session(build, backend="gloo", timeout=20.0, processes=processes) as session:
        if path.exists():
            session.load_state(path)
        else:
            if "x" in [port.label for port in session.program.signature.inputs]:
                session(inputs[0].clone())
            session.save_state(path)
        return session(inputs[1].clone()).numpy()


def draw_and_reset(
    processes: Processes, build: Path, make_model: Callable[[], nn.Module], inputs: Sequence[Tensor]
) -> bool:
    """Returns whether a first call is the same again after a reset."""
    torch.manual_seed(processes.rank)
    with load(build, init=make_model, timeout=20.0, processes=processes) as session:
        first = session(inputs[0].clone())
        second = session(inputs[0].clone())
        session.reset()
        return not torch.equal(first, second) and torch.equal(first, session(inputs[0].clone()))
