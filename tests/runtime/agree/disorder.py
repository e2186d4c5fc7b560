"""What tests of mistakes and failures on one rank alone run in real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from autopar.base.errors import AutoparError
from autopar.runtime.checkpoint import checkpoint
from autopar.runtime.execute import generate
from autopar.runtime.execute.session import Session
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.job.messages import Messages
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.checkpoints import Checkpoints
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.state.stateful import calls
from tests.runtime.training.steps import Model, batches

OPTIONS: dict[str, Any] = {"timeout": 20.0, "backend": "gloo"}


def said(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Returns the class and text of the error that a call ends with; else the sum it returns."""
    try:
        found = call(*args, **kwargs)
    except AutoparError as error:
        return f"{type(error).__name__}: {error}"
    return str(float(found.double().sum())) if isinstance(found, Tensor) else ""


def states(processes: Processes, build: Path, folder: Path) -> tuple[list[str], bool]:
    """Loads state that is missing or damaged on rank 1.

    Returns:
        What is said, and whether what is computed then is what it was.
    """
    first, second, _ = calls("cache")
    mine = processes.rank == 1
    with Session(build, processes=processes, **OPTIONS) as session:
        session(first)
        session.save_state(folder / "s")
        wanted = said(session, second)
        session.load_state(folder / "s")
        if mine:
            (folder / "cut").write_bytes((folder / "s").read_bytes()[:-1])
        state = session.state_dict()
        found = [
            said(session.load_state, folder / ("none" if mine else "s")),
            said(session.load_state, folder / ("cut" if mine else "s")),
            said(session.load_state_dict, {} if mine else {k: t + 1 for k, t in state.items()}),
            said(session.run, {"x": second}, gather=mine),
        ]
        if mine:
            session._first._files = (folder / "cut",)
        found.append(said(session.reset))
        return found, said(session, second) == wanted


def mistakes(processes: Processes, build: Path, folder: Path) -> tuple[dict[str, str], bool, float]:
    """Makes mistakes in calls of a trainer, on rank 1 alone.

    Returns:
        What is said to each, whether the state is what it was, and the loss of the next step.
    """
    mine = processes.rank == 1
    with open_trainer(build, processes=processes, **OPTIONS) as trainer:
        found = {"fetched": said(trainer.fetched)}
        trainer.step(batches(1)[0])
        trainer.save_weights(folder / "w.safetensors")
        before, optimizer = trainer.state_dict(), trainer.optimizer_state_dict()
        state = {name: tensor + 1 for name, tensor in before.items()}
        if not mine:
            trainer_state = {**optimizer, "state": _plus_one(optimizer["state"])}
        else:
            trainer_state = {**optimizer, "param_groups": []}

        def save(**options: Any) -> str:
            return said(trainer.save_checkpoint, folder / "d", **options)

        found["extra"] = save(extra={1} if mine else None)
        found["other extra"] = save(extra=1 if mine else 2)
        found["keep"] = save(keep=0 if mine else 1)
        found["beside"] = save(keep=0 if mine else 1, wait=False)
        other = folder / ("e" if mine else "d")
        found["other path"] = said(trainer.save_checkpoint, other)
        found["other weights"] = said(trainer.save_weights, other)
        found["other folder"] = said(trainer.resume, other)
        found["shards"] = said(
            trainer.save_weights, folder / "d", max_shard_bytes=-1 if mine else None
        )
        path = folder / ("none" if mine else "w.safetensors")
        found["weights"] = said(trainer.load_weights, path)
        found["state"] = said(trainer.load_state_dict, {} if mine else state)
        found["optimizer"] = said(trainer.load_optimizer_state_dict, trainer_state)
        found.update(unfit_arguments(trainer, folder, mine))
        trainer.save_checkpoint(folder / "c")
        path = folder / ("none" if mine else "c")
        found["checkpoint"] = said(trainer.load_checkpoint, path)
        other_checkpoint(trainer, folder)
        path = folder / ("other" if mine else "c")
        found["other checkpoint"] = said(trainer.load_checkpoint, path)
        found["rank0_only"] = said(trainer.state_dict, rank0_only=mine)
        call = trainer.state_dict if mine else trainer.optimizer_state_dict
        found["other state"] = said(call)
        found["copy"] = said(trainer.copy_to, torch.nn.Linear(1, 1) if mine else Model())
        path = folder / "w.safetensors"
        found["calls"] = said(trainer.load_weights if mine else trainer.save_weights, path)
        after, groups = trainer.state_dict(), trainer.optimizer_state_dict()
        same = all(torch.equal(before[name], after[name]) for name in before)
        same &= _sum(optimizer["state"]) == _sum(groups["state"])
        same &= not (folder / "d").exists()
        return found, same, float(trainer.step(batches(2)[1]))


def other_contents(
    processes: Processes, build: Path, stateful: Path, folder: Path, checked: bool
) -> tuple[dict[str, str], bool]:
    """Loads state of which a tensor has another number on rank 1.

    Returns:
        What is said to each, and whether the state is what it was.
    """
    mine = processes.rank == 1
    options = {**OPTIONS, "check_inputs": checked}
    with open_trainer(build, processes=processes, **options) as trainer:
        model, optimizer = trainer.state_dict(), trainer.optimizer_state_dict()
        last, of = [*model][-1], [*optimizer["state"]][-1]
        other, file = _changed(model, last), folder / f"w{processes.rank}.safetensors"
        save_file(other if mine else model, file)
        states = {**optimizer["state"], of: _changed(optimizer["state"][of], "exp_avg")}
        group = {**optimizer["param_groups"][0], "lr": 0.5}
        loads = {
            "model": (trainer.load_state_dict, model, other),
            "optimizer": (
                trainer.load_optimizer_state_dict,
                optimizer,
                {**optimizer, "state": states},
            ),
            "groups": (
                trainer.load_optimizer_state_dict,
                optimizer,
                {**optimizer, "param_groups": [group, *optimizer["param_groups"][1:]]},
            ),
            "weights": (trainer.load_weights, file, file),
        }
        found = {
            name: said(load, odd if mine else usual) for name, (load, usual, odd) in loads.items()
        }
        same = all(torch.equal(model[name], each) for name, each in trainer.state_dict().items())
        same &= _sum(optimizer["state"]) == _sum(trainer.optimizer_state_dict()["state"])
        found["alike"] = said(trainer.load_state_dict, model)
        meta = {name: tensor.to("meta") for name, tensor in model.items()}
        found["meta"] = said(trainer.load_state_dict, meta if mine else model)
    with Session(stateful, processes=processes, **options) as session:
        session(calls("cache")[0])
        session.save_state(folder / "cache")
        state = load_file(folder / "cache")
        file = folder / f"s{processes.rank}"
        save_file(_changed(state, next(iter(state))) if mine else state, file)
        found["state"] = said(session.load_state, file)
        given = session.state_dict()
        found["session"] = said(
            session.load_state_dict, _changed(given, next(iter(given))) if mine else given
        )
    return found, same


def _changed(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Returns tensors of which one has another number."""
    other = tensors[name].clone()
    other.view(-1)[-1] += 1
    return {**tensors, name: other}


def unfit_arguments(trainer: Trainer, folder: Path, mine: bool) -> dict[str, str]:
    """Returns what a trainer says to arguments of a wrong type on one rank alone."""
    given = {
        "save_checkpoint": folder / "d",
        "load_checkpoint": folder / "d",
        "resume": folder / "d",
        "save_weights": folder / "d",
        "load_weights": folder / "w.safetensors",
        "load_state_dict": trainer.state_dict(),
        "load_optimizer_state_dict": trainer.optimizer_state_dict(),
        "initialize": Model,
    }
    found = {call: said(getattr(trainer, call), 3 if mine else fit) for call, fit in given.items()}
    found["wait"] = said(trainer.save_checkpoint, folder / "d", wait="no" if mine else True)
    size: Any = "1" if mine else 1
    found["max_shard_bytes"] = said(trainer.save_weights, folder / "d", max_shard_bytes=size)
    return found


def other_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Saves another checkpoint of as many steps, and goes back to the first."""
    state = trainer.state_dict()
    trainer.load_state_dict({name: tensor + 1 for name, tensor in state.items()})
    trainer.save_checkpoint(folder / "other")
    trainer.load_state_dict(state)


def beginnings(processes: Processes, build: Path) -> tuple[dict[str, str], bool, str]:
    """Initializes a trainer, and asks for DTensors, otherwise on rank 1 than on rank 0.

    Returns:
        What is said to each, whether the state and torch's generator are what they were, and
        what the next step returns.
    """
    mine = processes.rank == 1
    with open_trainer(build, processes=processes, **OPTIONS) as trainer:
        before, drawn = trainer.state_dict(), torch.get_rng_state()
        mesh = init_device_mesh("cpu", (2,))
        other: Any = "x" if mine else None
        found = {
            "raises": said(trainer.initialize, _raising if mine else Model),
            "makes": said(trainer.initialize, (lambda: nn.Linear(2, 2)) if mine else Model),
            "holds": said(trainer.initialize, lambda: _Constant(processes.rank)),
            "fits": said(lambda: len(trainer.dtensors(other)) and None),
            "mesh": said(lambda: len(trainer.dtensors(mesh if mine else None)) and None),
        }
        after = trainer.state_dict()
        same = all(torch.equal(before[name], after[name]) for name in before)
        same &= torch.equal(drawn, torch.get_rng_state())
        return found, same, said(trainer.step, batches(1)[0])


def _raising() -> nn.Module:
    raise ValueError("no such config")


class _Constant(Model):
    """Its weight is a number of the user's."""

    def __init__(self, number: float) -> None:
        super().__init__()
        with torch.no_grad():
            self.up.weight.copy_(torch.tensor(float(number)))


def _plus_one(state: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    return {name: {k: t + 1 for k, t in each.items()} for name, each in state.items()}


def _sum(state: dict[str, dict[str, Tensor]]) -> float:
    return float(sum(t.double().sum() for each in state.values() for t in each.values()))


def closed(processes: Processes, build: Path, folder: Path) -> dict[str, str]:
    """Returns what each call of a closed trainer says."""
    trainer = open_trainer(build, processes=processes, **OPTIONS)
    trainer.step(batches(1)[0])
    trainer.close()
    trainer.close()
    return each_call(trainer, folder)


def closed_session(processes: Processes, build: Path, folder: Path) -> dict[str, str]:
    """Returns what each call of a closed session says."""
    first = calls("cache")[0]
    session = Session(build, processes=processes, **OPTIONS)
    session(first)
    session.close()
    return {
        "call": said(session, first),
        "run": said(session.run, {}),
        "initialize": said(session.initialize, torch.nn.Module),
        "state_dict": said(session.state_dict),
        "load_state_dict": said(session.load_state_dict, {}),
        "reset": said(session.reset),
        "save_state": said(session.save_state, folder / "s"),
        "load_state": said(session.load_state, folder / "s"),
    }


def failed(processes: Processes, build: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """Returns what a step says in which an op fails on rank 1, and then each call."""
    if processes.rank == 1:
        generate.fast_kernel = _breaking(generate.fast_kernel)
    trainer = open_trainer(build, processes=processes, **OPTIONS)
    first = ""
    for batch in batches(4):
        first = said(trainer.step, batch)
        if first.startswith("RankFailure"):
            break
    later = each_call(trainer, folder)
    trainer.close()
    return first, later


def _breaking(kernel: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns kernels of which that of a ReLU fails in the second step."""
    runs: list[str] = []

    def found(kind: str) -> Any:
        made = kernel(kind)

        def broken(*args: Any, **kwargs: Any) -> Any:
            runs.append(kind)
            if len(runs) == 2:
                raise MemoryError("out of memory")
            return made(*args, **kwargs)

        return broken if kind == "aten.relu.default" else made

    return found


def leave(processes: Processes, build: Path, how: str) -> str:
    """Returns what the others learn of rank 1, which leaves between two calls."""
    try:
        with open_trainer(build, processes=processes, **OPTIONS) as trainer:
            trainer.step(batches(1)[0])
            if processes.rank == 1:
                _leave(how)
                return "left"
            trainer.step(batches(1)[0])
    except (ValueError, SystemExit):
        return "left"
    return "went on"


def _leave(how: str) -> None:
    if how == "raise":
        raise ValueError("out of luck")
    if how == "exit":
        raise SystemExit(3)


def each_call(trainer: Trainer, folder: Path) -> dict[str, str]:
    """Returns what each call of a trainer says."""
    return {
        "step": said(trainer.step, batches(1)[0]),
        "wrong step": said(trainer.step, ()),
        "initialize": said(trainer.initialize, Model),
        "state_dict": said(trainer.state_dict),
        "load_state_dict": said(trainer.load_state_dict, {}),
        "optimizer_state_dict": said(trainer.optimizer_state_dict),
        "load_optimizer_state_dict": said(trainer.load_optimizer_state_dict, {}),
        "copy_to": said(trainer.copy_to, Model()),
        "save_checkpoint": said(trainer.save_checkpoint, folder / "c"),
        "snapshot_bytes": said(lambda: trainer.snapshot_bytes),
        "load_checkpoint": said(trainer.load_checkpoint, folder / "c"),
        "resume": said(trainer.resume, folder),
        "save_weights": said(trainer.save_weights, folder / "w"),
        "load_weights": said(trainer.load_weights, folder / "w"),
        "shards": said(trainer.shards),
        "dtensors": said(trainer.dtensors),
        "fetched": said(trainer.fetched),
    }


def absent_after_damage(trainer: Trainer, checkpoint: Path) -> list[str]:
    """Returns what a trainer says that couldn't read all of a checkpoint, as it is given state."""
    model, optimizer = trainer.state_dict(), trainer.optimizer_state_dict()
    found = [said(trainer.load_checkpoint, checkpoint), said(trainer.step, batches(1)[0])]
    trainer.load_state_dict(model)
    found.append(said(trainer.step, batches(1)[0]))
    trainer.load_optimizer_state_dict(optimizer)
    return [*found, said(trainer.step, batches(1)[0])]


def parts(processes: Processes, training: Path, inference: Path) -> list[str]:
    """Returns what is said to ranks that hand over their parts of a global batch."""
    x, target = (each.chunk(2)[processes.rank] for each in batches(1)[0])
    with open_trainer(training, processes=processes, **OPTIONS) as trainer:
        found = [said(trainer.step, (x, target)), said(trainer.step, batches(1)[0])]
    with Session(inference, processes=processes, **OPTIONS) as session:
        return [*found, said(session, x)]


def slow_to_say(processes: Processes, build: Path) -> str:
    """Returns what is said where rank 0 fails by itself while the others don't answer."""
    with open_trainer(build, processes=processes, **OPTIONS) as trainer:
        trainer.step(batches(1)[0])
        if processes.rank == 0:
            try:
                with trainer.ranks.reported():
                    raise ValueError("out of luck")
            except RankFailure as failure:
                # It serves the store, where the others learn of it.
                time.sleep(8.0)
                return f"! {failure}"
        # They hold the interpreter, so that no thread of theirs says where they are.
        _busy(4.0)
        trainer.step(batches(1)[0])
    return "no error"


def _busy(seconds: float) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    sys.setswitchinterval(interval)


def sleep_in_save(processes: Processes, build: Path, folder: Path, victim: int) -> str:
    """Returns what is said where a rank sleeps while it writes its part of a checkpoint."""
    options = {**OPTIONS, "timeout": 3.0, "on_failure": _say_and_exit}
    if processes.rank == victim:
        write = checkpoint.write_rectangles
        checkpoint.write_rectangles = lambda *args: (time.sleep(12.0), write(*args))
    with open_trainer(build, processes=processes, **options) as trainer:
        return said(trainer.save_checkpoint, folder / "c")


def _say_and_exit(failure: RankFailure) -> None:
    os._exit(17)


def killed_while_saving(processes: Processes, build: Path, folder: Path, connects: bool) -> str:
    """Returns what is said at the end where rank 0 is killed while it saves beside the training.

    Args:
        processes: Who this process is.
        build: The build.
        folder: Where the checkpoint would go.
        connects: Whether the other rank connects to the store only then.
    """

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    connected = Checkpoints.messages

    def connect(checkpoints: Checkpoints, meeting: bool) -> Messages:
        time.sleep(0.3)
        return connected(checkpoints, meeting)

    if processes.rank == 0:
        checkpoint.write_rectangles = die
        Checkpoints.messages = die if connects else connected
    elif connects:
        Checkpoints.messages = connect

    def train() -> None:
        with open_trainer(build, processes=processes, **OPTIONS) as trainer:
            trainer.save_checkpoint(folder / "c", wait=False)

    return said(train)
