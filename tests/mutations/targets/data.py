"""Data that goes into a build: inputs, weights, and checkpoints of a training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import load_file, save_file

from autopar.runtime.training.opening import open_trainer
from tests.cli.command import INPUT, compiled
from tests.mutations import trees
from tests.mutations.arrays import mutate_npy, mutate_npz, mutate_safetensors
from tests.mutations.byte_level import damage
from tests.mutations.pickled import mutate_pickle
from tests.mutations.target import Step, Target
from tests.runtime.training.steps import LAYOUTS, batches, training_build

BUILD = "build"
FORMATS: dict[str, Callable[[bytes, Random], tuple[bytes, str]]] = {
    "x.npy": mutate_npy,
    "x.npz": mutate_npz,
    "x.safetensors": mutate_safetensors,
}


def prepare_inputs(folder: Path) -> None:
    """Writes a build, and an input of it in every format."""
    compiled(folder)
    np.save(folder / "x.npy", INPUT)
    np.savez(folder / "x.npz", x=INPUT)
    save_file({"x": INPUT}, folder / "x.safetensors")


def mutate_input(prepared: Path, folder: Path, chance: Random, structure: bool) -> str:
    """Writes mutated inputs in every format: which one is read, the steps decide."""
    shutil.copytree(prepared / BUILD, folder / BUILD)
    done = []
    for name, change in FORMATS.items():
        content = (prepared / name).read_bytes()
        if structure:
            content, what = change(content, chance)
        else:
            content, what = damage(content, chance)
        (folder / name).write_bytes(content)
        done.append(f"{name}: {what}")
    return "; ".join(done)


def _steps_of_inputs(chance: Random) -> Sequence[Step]:
    given = chance.choice(("x=x.npy", "x.npz", "x.safetensors"))
    return (["run", BUILD, "--virtual", "--input", given, "--output", "out.npz"],)


def prepare_weights(folder: Path) -> None:
    """Writes a training build, and weights for it."""
    build = training_build(folder / BUILD, LAYOUTS[5])
    with open_trainer(build, virtual=True) as trainer:
        state = {name: tensor.numpy() for name, tensor in trainer.state_dict().items()}
    save_file(state, folder / "weights.safetensors")


def mutate_weights(prepared: Path, folder: Path, chance: Random, structure: bool) -> str:
    """Writes mutated weights."""
    shutil.copytree(prepared / BUILD, folder / BUILD)
    content = (prepared / "weights.safetensors").read_bytes()
    content, done = (mutate_safetensors if structure else damage)(content, chance)
    (folder / "weights.safetensors").write_bytes(content)
    return done


def train_from_weights() -> None:
    """Takes a step from the weights."""
    trainer = open_trainer(BUILD, virtual=True, weights="weights.safetensors", check_loss=False)
    trainer.step(batches(1)[0])


def _steps_of_weights(chance: Random) -> Sequence[Step]:
    del chance
    return (train_from_weights,)


def prepare_checkpoint(folder: Path) -> None:
    """Writes a training build, and a checkpoint of it."""
    build = training_build(folder / BUILD, LAYOUTS[5])
    with open_trainer(build, virtual=True) as trainer:
        trainer.step(batches(1)[0])
        trainer.save_checkpoint(folder / "checkpoint")
        state = {name: tensor.numpy() for name, tensor in trainer.state_dict().items()}
    save_file(state, folder / "saved.safetensors")


def mutate_checkpoint(prepared: Path, folder: Path, chance: Random, structure: bool) -> str:
    """Writes a mutated checkpoint."""
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    checkpoint = folder / "checkpoint"
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    path = chance.choice(files)
    if not structure and chance.random() < 0.05:
        path.unlink()
        return f"{path.name} is missing"
    content = path.read_bytes()
    if structure:
        content, done = _mutate_file(path, chance)
    else:
        content, done = damage(content, chance, (), chance.choice(files).read_bytes())
    path.write_bytes(content)
    return f"{path.name}: {done}"


def _mutate_file(path: Path, chance: Random) -> tuple[bytes, str]:
    content = path.read_bytes()
    if path.name == ".metadata":
        return mutate_pickle(content, chance)
    try:
        tree = json.loads(content)
    except ValueError:
        return _mutate_archive(content, chance)
    changed, done = trees.mutate(tree, chance)
    return json.dumps(changed, default=str).encode("utf-8", "surrogatepass"), done


def _mutate_archive(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Changes the pickle within a tensor of torch's, where there is one of equal length."""
    at = content.find(b"\x80\x02c")
    end = content.find(b".PK", at)
    if at < 0 or end < 0 or chance.random() < 0.3:
        return damage(content, chance)
    place = chance.randrange(at, end)
    changed = bytearray(content)
    changed[place] = chance.choice((0, 0xFF, changed[place] ^ 1, ord("."), ord("R"), ord("c")))
    return bytes(changed), f"byte {place - at} of the first tensor's pickle"


def load_checkpoint() -> None:
    """Loads the checkpoint, of which what isn't refused must be as it was, and takes a step."""
    trainer = open_trainer(BUILD, virtual=True, check_loss=False)
    trainer.load_checkpoint("checkpoint")
    saved, found = load_file("saved.safetensors"), trainer.state_dict()
    wrong = [name for name, tensor in saved.items() if not np.array_equal(found[name], tensor)]
    if wrong:
        raise ValueError(f"read in silence, and wrong: {', '.join(wrong)}")
    trainer.step(batches(1)[0])


def _steps_of_checkpoint(chance: Random) -> Sequence[Step]:
    del chance
    return (load_checkpoint,)


INPUTS = Target("inputs", 10, prepare_inputs, mutate_input, _steps_of_inputs, ("out.npz",))
WEIGHTS = Target("weights", 6, prepare_weights, mutate_weights, _steps_of_weights)
CHECKPOINT = Target("checkpoint", 10, prepare_checkpoint, mutate_checkpoint, _steps_of_checkpoint)
