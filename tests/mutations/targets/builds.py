"""Build folders, of inference and of training; what is mutated is often signed again, so that
what stands behind the checksums is reached."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from autopar.ir import program_pb2
from autopar.ir.serde import manifest_from_bytes, manifest_to_bytes
from autopar.runtime.training.opening import open_trainer
from tests.cli.command import autopar, compiled
from tests.mutations import messages
from tests.mutations.arrays import mutate_safetensors
from tests.mutations.byte_level import damage
from tests.mutations.target import Step, Target
from tests.mutations.targets.models import of_our_own
from tests.mutations.trees import mutate_yaml
from tests.runtime.training.steps import LAYOUTS, batches, training_build

BUILD = "build"
OUTPUTS = "outputs.npz"
"""What a sound build computes, beside builds that aren't signed again: what is noticed in them, or
means nothing."""
RANDOM = ("--virtual", "--random-inputs", "0", "--output")


def prepare_builds(folder: Path) -> None:
    """Writes builds of several models for several meshes, and an input."""
    (folder / "split").mkdir()
    compiled(folder / "split")
    for number, (name, proto) in enumerate(of_our_own().items()):
        place = folder / name
        place.mkdir()
        (place / "model.onnx").write_bytes(proto.SerializeToString())
        mesh = ("2", "2x2", "3")[number % 3]
        words = ["compile", place / "model.onnx", "--mesh", mesh, "--dims", "batch=8", "-q"]
        done = autopar(*words, "--strategy", "data", "-o", place / BUILD)
        assert done.exit_code == 0, done.output
    for place in folder.iterdir():
        done = autopar("run", place / BUILD, *RANDOM, place / OUTPUTS)
        assert done.exit_code == 0, done.output


def prepare_training(folder: Path) -> None:
    """Writes builds of a training step for several meshes."""
    for at in (1, 5, 7):
        training_build(folder / str(at) / BUILD, LAYOUTS[at])


def mutate(prepared: Path, folder: Path, chance: Random, structure: bool) -> str:
    """Writes a mutated build."""
    place = chance.choice(sorted(path for path in prepared.iterdir() if path.is_dir()))
    shutil.copytree(place, folder, dirs_exist_ok=True)
    build = folder / BUILD
    files = sorted(path for path in build.rglob("*") if path.is_file())
    path = _chosen(build, files, chance)
    content = path.read_bytes()
    if structure:
        content, done = _mutate_file(path, chance)
    elif chance.random() < 0.05:
        path.unlink()
        return f"{place.name}: {path.name} is missing"
    else:
        content, done = damage(content, chance, (), chance.choice(files).read_bytes())
    path.write_bytes(content)
    if path.name != "manifest.pb" and (structure or chance.random() < 0.5):
        sign(build)
        done += ", signed again"
        (folder / OUTPUTS).unlink(missing_ok=True)
    return f"{place.name}: {path.relative_to(build)}: {done}"


def _chosen(build: Path, files: Sequence[Path], chance: Random) -> Path:
    """Returns one of the files; of many programs one is as likely as one of another kind."""
    apart = [path for path in files if path.parent == build]
    programs = [path for path in files if path.parent != build]
    at = chance.randrange(len(apart) + 2)
    return apart[at] if at < len(apart) else chance.choice(programs)


def _mutate_file(path: Path, chance: Random) -> tuple[bytes, str]:
    content = path.read_bytes()
    if path.suffix == ".pb":
        message = program_pb2.File.FromString(content)
        done = messages.mutate(message, chance)
        return message.SerializeToString(), done
    if path.suffix == ".safetensors":
        return mutate_safetensors(content, chance)
    text, done = mutate_yaml(content.decode(), chance)
    return text.encode("utf-8", "surrogatepass"), done


def sign(build: Path) -> None:
    """Makes the manifest list the files as they are."""
    path = build / "manifest.pb"
    manifest = manifest_from_bytes(path.read_bytes())
    entries = []
    for entry in manifest.files:
        data = (build / entry.path).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        entries.append(replace(entry, sha256=digest, bytes=len(data)))
    path.write_bytes(manifest_to_bytes(replace(manifest, files=tuple(entries))))


def compare_outputs() -> None:
    """Raises if what is not refused computes something else than before the damage."""
    if not Path(OUTPUTS).exists() or not Path("out.npz").exists():
        return
    expected, found = np.load(OUTPUTS), np.load("out.npz")
    wrong = [name for name in expected if not np.array_equal(expected[name], found[name])]
    if wrong:
        raise ValueError(f"computed in silence, and wrong: {', '.join(wrong)}")


def _steps(chance: Random) -> Sequence[Step]:
    reading: Sequence[Sequence[str]] = (
        ["run", BUILD, *RANDOM, "out.npz"],
        ["inspect", BUILD],
        ["inspect", BUILD, "--rank", "1"],
        ["inspect", BUILD, "--serial"],
        ["inspect", BUILD, "--format", "json"],
        ["verify", BUILD],
        ["profile", BUILD],
        ["explain", BUILD],
        ["plan", BUILD, "-o", "plan.yaml"],
        ["diff", BUILD, BUILD],
        ["verify", BUILD, "--files"],
    )
    run, other = reading[0], chance.choice(reading[1:])
    return chance.choice(((run, compare_outputs, other), (other, run, compare_outputs), (other,)))


def train_a_step() -> None:
    """Opens a training build on the virtual mesh and takes a step."""
    trainer = open_trainer(BUILD, virtual=True)
    trainer.step(batches(1)[0])
    trainer.state_dict()
    trainer.optimizer_state_dict()


def _steps_of_training(chance: Random) -> Sequence[Step]:
    return (train_a_step, *(_steps(chance) if chance.random() < 0.3 else ()))


BUILDS = Target("build", 22, prepare_builds, mutate, _steps, outputs=("out.npz", "plan.yaml"))
TRAINING = Target(
    "training-build", 10, prepare_training, mutate, _steps_of_training, ("out.npz", "plan.yaml")
)
