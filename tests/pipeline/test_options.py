"""What a user may say of a compilation: understood alike from Python and from the command line."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch

import autopar
from autopar.base.errors import AutoparError, InvalidInputError
from autopar.cli.compiling import compile_command
from autopar.ir.builds.files import read_build
from autopar.pipeline import DEFAULTS, CompileArguments, CompileOptions, recorded_options
from tests.cli.command import compiled
from tests.mutations.targets.builds import sign

LIMIT = "a search takes no less than 0 seconds"


@pytest.mark.parametrize(
    ("arguments", "of_python", "of_command_line"),
    [
        ({}, "give mesh=, or devices= to search", "give --mesh, or --devices to search"),
        (
            {"mesh": "2", "devices": 2},
            "mesh= says how many processes; leave out devices=",
            "--mesh says how many processes; leave out --devices",
        ),
        ({"devices": 0}, "devices=0: a mesh needs", "--devices 0: a mesh needs"),
        (
            {"mesh": "2", "time_limit": -1.0},
            f"time_limit=-1.0: {LIMIT}",
            f"--time-limit -1.0: {LIMIT}",
        ),
        (
            {"mesh": "2", "effort": 0.0},
            "effort=0.0: give how many times",
            "--effort 0.0: give how many times",
        ),
        (
            {"mesh": "2", "plan": "plan.yaml"},
            "plan.yaml is for d0=4, but mesh= says d0=2",
            "plan.yaml is for d0=4, but --mesh says d0=2",
        ),
        (
            {"devices": 4, "plan": "plan.yaml"},
            "give this mesh as mesh= in the place of devices=",
            "give this mesh as --mesh in the place of --devices",
        ),
        (
            {"devices": 4, "strategy": "data"},
            "give mesh= in the place of devices=",
            "give --mesh in the place of --devices",
        ),
        ({"mesh": "2", "strategy": "dta"}, "no preset 'dta'", "no preset 'dta'"),
        ({"mesh": "2", "placement": "0,0"}, "process 1 is missing", "process 1 is missing"),
        ({"mesh": "2", "memory": "24 gigs"}, "write a number and a unit", "write a number"),
    ],
)
def test_a_mistake_is_named_as_it_was_written(
    arguments: dict[str, Any],
    of_python: str,
    of_command_line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text("mesh: 4\n")
    with pytest.raises(AutoparError, match=re.escape(of_python)):
        CompileOptions.from_arguments(**arguments)
    with pytest.raises(AutoparError, match=re.escape(of_command_line)):
        CompileOptions.from_text(**arguments)


ENTRIES = (autopar.compile, autopar.compile_onnx, autopar.parallelize)
ENTRY = re.compile(r"^ +(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def explained(what: Any) -> dict[str, str]:
    """Returns what a docstring says of each argument or attribute."""
    return dict(ENTRY.findall(inspect.getdoc(what) or ""))


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_ways_in_share_their_arguments(entry: Any) -> None:
    """Each spells them out, in one order, with the defaults and words that stand in one place."""
    given = inspect.signature(entry).parameters
    shared = [name for name in given if name in DEFAULTS]
    assert shared == list(DEFAULTS) == list(CompileArguments.__annotations__)
    assert {name: given[name].default for name in shared} == DEFAULTS
    said = explained(entry)
    assert {name: said[name] for name in shared} == explained(CompileArguments)
    kinds = {name: given[name].annotation for name in shared}
    own = {name: each.__forward_arg__ for name, each in CompileArguments.__annotations__.items()}
    assert kinds == own
    assert {given[name].kind for name in shared} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_argument_is_explained(entry: Any) -> None:
    assert list(explained(entry))[: len(inspect.signature(entry).parameters)] == list(
        inspect.signature(entry).parameters
    )


def test_the_command_line_has_the_names_of_python() -> None:
    options = {each.name for each in compile_command.params}
    python = set(inspect.signature(autopar.compile_onnx).parameters)
    alone = {"print_after", "no_verify", "quiet"}
    assert options - alone == python - {"activations"}
    for each in compile_command.params:
        spelled = f"--{(each.name or '').replace('_', '-')}"
        assert isinstance(each, click.Argument) or spelled in each.opts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": "4"}, "devices='4': give a number of processes"),
        ({"devices": True}, "devices=True: give a number of processes"),
        ({"mesh": "2", "memory": True}, "memory=True: give bytes, or a text as '24GiB'"),
        ({"mesh": "2", "memory": 1.5}, "memory 1.5: give whole bytes, or a text as '24.5GiB'"),
        ({"mesh": "2", "memory": "1.5"}, "memory '1.5': that many bytes there aren't; give a unit"),
        ({"mesh": "2", "strategy": 3}, "strategy=3: give a text, as 'data:0,tensor:1'"),
        ({"mesh": "2", "shard": ["w"]}, "shard=['w']: give a dict, as {'*.weight': [-1, 'tp']}"),
        ({"mesh": "2", "cluster": None}, "cluster=None: give a name, a YAML file, or a Cluster"),
        ({"mesh": "2", "memory": [1]}, "memory=[1]: give bytes, or a text as '24GiB'"),
        ({"mesh": "2", "time_limit": "1"}, "time_limit='1': give a number of seconds"),
        ({"mesh": "2", "effort": "much"}, "effort='much': give a number, as 10"),
        ({"mesh": "2", "plan": 1}, "plan=1: give the path of a file"),
        ({"mesh": "2", "activations": "save"}, "activations='save': give a dict, as {'layers.*'"),
    ],
)
def test_arguments_of_unfit_types(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoparError, match=re.escape(message)):
        CompileOptions.from_arguments(**arguments)


def test_both_understand_the_same() -> None:
    said: Any = {"mesh": "dp=2,tp=2", "strategy": "none", "memory": "1GiB", "placement": "3,2,1,0"}
    of_python = CompileOptions.from_arguments(**said)
    assert of_python == CompileOptions.from_text(**said)
    assert (of_python.strategy, of_python.placement) == (None, (3, 2, 1, 0))


def test_a_build_remembers_what_it_was_compiled_with(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    made = autopar.compile(
        model,
        (torch.zeros(4, 8), torch.zeros(4, 8)),
        loss=torch.nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters()),
        mesh="dp=2,tp=2",
        placement=(3, 2, 1, 0),
        memory="1GiB",
        time_limit=60,
        effort=2,
        cluster="h100",
        activations={"0": "recompute"},
    )
    made.save(tmp_path / "build")
    known, options = recorded_options(read_build(tmp_path / "build")), made.options
    (pin,), (kept,) = known.activations, options.activations
    assert (pin.pattern, pin.choice) == (kept.pattern, kept.choice) == ("0", "recompute")
    assert replace(known, activations=options.activations) == options


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "is no text: "),
        (b"\x00", "is not a YAML file of options"),
        (b"strategy: [", "can't read the options in "),
        (b"- strategy", "isn't what autopar writes: it has no options; compile the model again"),
        (b"cluster: {}", "options.yaml:\n  - "),
    ],
)
def test_what_it_remembers_may_be_nonsense(tmp_path: Path, content: bytes, message: str) -> None:
    build = compiled(tmp_path)
    (build / "options.yaml").write_bytes(content)
    sign(build)
    with pytest.raises(InvalidInputError, match=re.escape(message)) as raised:
        recorded_options(read_build(build))
    assert str(build / "options.yaml") in str(raised.value)


def test_one_option_that_it_remembers_may_be_nonsense(tmp_path: Path) -> None:
    build = compiled(tmp_path)
    known = (build / "options.yaml").read_text()
    (build / "options.yaml").write_text(known.replace("activations: []", "activations: 3"))
    sign(build)
    with pytest.raises(InvalidInputError, match="writes: activations is 3; compile the model"):
        recorded_options(read_build(build))


def test_a_schedule_is_for_a_pipeline() -> None:
    options = CompileOptions.from_arguments(mesh="2")
    with pytest.raises(InvalidInputError, match="schedule='zb-h1' is for a pipeline; say along"):
        options.in_stages("", schedule="zb-h1")
    assert options.in_stages("", schedule="auto").schedule == "1f1b"
    assert options.in_stages("", schedule="gpipe", default="gpipe").schedule == "gpipe"


def test_what_has_no_rows_is_not_cut_into_microbatches() -> None:
    model = torch.nn.Linear(4, 2)
    with pytest.raises(InvalidInputError, match=r"accumulate=2 cuts .* has none; give it as"):
        autopar.compile(
            model,
            (torch.ones(4, 4), torch.tensor(2.0)),
            training_step=lambda module, batch: module(batch[0]).sum() * batch[1],
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            mesh="1",
            accumulate=2,
        )
