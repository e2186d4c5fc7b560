"""What users write by hand: annotations, plans and clusters, as YAML; and words of the command."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from autopar.cost import Cluster
from autopar.cost.cluster_text import cluster_text
from tests.cli.command import BATCH, autopar, compiled
from tests.mutations import odd
from tests.mutations.byte_level import damage
from tests.mutations.target import Step, Target
from tests.mutations.trees import mutate_yaml

WORDS = ("compile", "model.onnx", "--dims", f"batch={BATCH}", "-o", "out", "-q")
ANNOTATIONS = """\
mesh: dp=2,tp=4
shard:
  enc.*.weight: [-1, tp]
  x: [[dp], null]
"""


def prepare_annotations(folder: Path) -> None:
    """Writes a model, and annotations for it."""
    compiled(folder)
    (folder / "file.yaml").write_text(ANNOTATIONS)


def prepare_plan(folder: Path) -> None:
    """Writes a model, and a plan of it."""
    build = compiled(folder)
    done = autopar("plan", build, "-o", folder / "file.yaml")
    assert done.exit_code == 0, done.output


def prepare_cluster(folder: Path) -> None:
    """Writes a model, and a cluster's figures."""
    compiled(folder)
    (folder / "file.yaml").write_text(cluster_text(Cluster.load("h100")))


def mutate(prepared: Path, folder: Path, chance: Random, structure: bool) -> str:
    """Writes a mutated YAML file, and the model that goes with it."""
    shutil.copy(prepared / "model.onnx", folder)
    source = (prepared / "file.yaml").read_bytes()
    if structure:
        text, done = mutate_yaml(source.decode(), chance)
        content = text.encode("utf-8", "surrogatepass")
    else:
        content, done = damage(source, chance, (), (prepared / "model.onnx").read_bytes())
    (folder / "file.yaml").write_bytes(content)
    return done


def _with(*more: str) -> Callable[[Random], Sequence[Step]]:
    def steps(chance: Random) -> Sequence[Step]:
        del chance
        return ([*WORDS, *more], ["run", "out", "--virtual", "--random-inputs", "0"])

    return steps


OPTIONS = {
    "--mesh": ("2x4", "dp=2,tp=4", "8", "2x2x2"),
    "--dims": ("batch=8", "x=1"),
    "--shard": ("enc.*.weight=[-1,d1]", "x=[(d0),-1]", "y=[d0,d1]"),
    "--strategy": ("data:0,tensor:1", "fsdp:d0", "auto", "none"),
    "--memory": ("24GiB", "1e3", "64KiB"),
    "--placement": ("auto", "0,1,2,3,4,5,6,7", "identity"),
    "--devices": ("4", "8"),
    "--input-shapes": ("x:8,16", "x:8"),
    "--time-limit": ("1", "0.5"),
    "--effort": ("1", "0.1"),
    "--print-after": ("complete", "map"),
    "--cluster": ("cpu", "h100", "model.onnx"),
    "--plan": ("model.onnx", "none.yaml"),
    "-o": ("out", "model.onnx"),
}
SIGNS = ("=", ",", ":", "x", "[", "]", "(", ")", "*", "-", "0", "9", "?", "!", "é", "\n")


def _mutate_words(prepared: Path, folder: Path, chance: Random, structure: bool) -> str:
    """Leaves the files as they are: the words are mutated, in the steps."""
    del chance, structure
    shutil.copy(prepared / "model.onnx", folder)
    return "odd words"


def _steps_of_words(chance: Random) -> Sequence[Step]:
    names = chance.sample(sorted(OPTIONS), chance.choice((1, 2, 3)))
    given = [word for name in names for word in (name, _odd_word(OPTIONS[name], chance))]
    if "-o" in names:  # Nowhere but in the case's folder.
        at = given.index("-o") + 1
        given[at] = given[at].replace("/", "_").replace("..", "_")
    if not {"--mesh", "--devices"} & set(names):
        given += ["--mesh", "2x4"]
    return ([*WORDS, *given],)


def _odd_word(known: Sequence[str], chance: Random) -> str:
    one = chance.choice(known)
    kind = chance.random()
    if kind < 0.2:
        return one
    if kind < 0.35:
        return odd.text(chance, known).replace("\0", "")
    numbers = [at for at, sign in enumerate(one) if sign.isdigit()]
    if kind < 0.6 and numbers:
        at = chance.choice(numbers)
        return one[:at] + str(odd.integer(chance) % 10**30) + one[at + 1 :]
    at = chance.randrange(len(one) + 1)
    return (
        one[:at] + chance.choice(SIGNS) * chance.choice((1, 1, 2, 5000)) + one[at + (kind < 0.8) :]
    )


ANNOTATED = Target(
    "annotations",
    10,
    prepare_annotations,
    mutate,
    _with("--mesh", "dp=2,tp=4", "--strategy", "none", "--plan", "file.yaml"),
)
PLAN = Target("plan", 10, prepare_plan, mutate, _with("--mesh", "2x4", "--plan", "file.yaml"))
CLUSTER = Target(
    "cluster", 8, prepare_cluster, mutate, _with("--mesh", "2x4", "--cluster", "file.yaml")
)
COMMAND = Target("words", 6, prepare_annotations, _mutate_words, _steps_of_words)
