"""A mistake or a failure on one rank alone is known to all of them, at once and as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.base.errors import InvalidInputError
from autopar.modules import compile
from autopar.runtime.agree.disagreement import GLOBAL_BATCH
from autopar.runtime.training.opening import open_trainer
from tests.runtime.agree import disorder
from tests.runtime.job.real import run_ranks
from tests.runtime.state.stateful import stateful_build
from tests.runtime.training.steps import LAYOUTS, Model, Reference, batches, training_build

REMEDY = "load it again, with resume= from its checkpoints"
CLOSED = f"InvalidInputError: this trainer is closed; {REMEDY}"


def test_state_that_one_rank_cannot_read_is_taken_over_by_none(tmp_path: Path) -> None:
    build = stateful_build(tmp_path / "b", "cache", "a=2,b=1")
    (first, same), (second, also) = run_ranks(2, disorder.states, build, tmp_path)
    assert same
    assert also
    for told, own in zip(first[:3], second[:3], strict=True):
        assert own.startswith("InvalidInputError: ")
        assert f"{told}: ".startswith("InvalidInputError: rank 1 refused load_state")
        assert told.endswith(own.removeprefix("InvalidInputError: "))
    assert "can't read" in second[0] or "no such" in second[0].lower()
    assert first[3] == second[3]
    assert "gather is False on rank 0 and True on rank 1" in first[3]
    assert first[4].startswith("InvalidInputError: rank 1 refused reset: ")


def test_state_that_is_not_the_same_on_all_ranks_is_taken_over_by_none(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[2])
    stateful = stateful_build(tmp_path / "s", "cache", "a=2,b=1")
    outcomes = run_ranks(2, disorder.other_contents, build, stateful, tmp_path, True)
    assert not isinstance(outcomes[0], str), outcomes
    (found, same), (second, also) = outcomes
    assert found.pop("meta").startswith("InvalidInputError: rank 1 refused load_state_dict")
    assert "has no values: it is on the meta device" in second.pop("meta")
    assert found == second
    assert same
    assert also
    assert found.pop("alike") == ""
    label = {"groups": "'param_groups[0]'", "optimizer": "'exp_avg/"}
    call = {
        "model": "load_state_dict",
        "session": "load_state_dict",
        "weights": "load_weights",
        "state": "load_state",
    }
    for name, text in found.items():
        called = call.get(name, "load_optimizer_state_dict")
        assert text.startswith(
            f"InvalidInputError: {called}: the ranks were given different contents: "
        )
        assert label.get(name, "'") in text
        assert "is not the same on ranks 0, 1; nothing is loaded; every rank needs the same" in text
        assert "check_inputs=False" in text


def test_contents_are_not_compared_where_inputs_are_not(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[2])
    stateful = stateful_build(tmp_path / "s", "cache", "a=2,b=1")
    for found, _ in run_ranks(2, disorder.other_contents, build, stateful, tmp_path, False):
        found.pop("meta")
        assert set(found.values()) == {""}


def test_a_trainers_mistakes_on_one_rank_are_those_of_all(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[2])
    outcomes = run_ranks(2, disorder.mistakes, build, tmp_path)
    (first, same, loss), (second, also, other) = outcomes
    assert same
    assert also
    assert loss == other
    reference = Reference.of_seed()
    assert loss == pytest.approx([reference.step(each) for each in batches(2)][1], rel=1e-5)
    assert first.pop("copy") == ""
    assert "the model isn't the one that was compiled" in second.pop("copy")
    assert all(each.startswith("InvalidInputError: ") for each in first.values())
    unfit = [name for name in second if "=3: give " in second[name]]
    assert len(unfit) == 8
    own = {name: text.removeprefix("InvalidInputError: ") for name, text in second.items()}
    assert "is no checkpoint" in first["checkpoint"]
    assert "rank 1 finds another one than rank 0" in first["other checkpoint"]
    for call, name in (("path", "path"), ("weights", "path"), ("folder", "folder")):
        told = f"{name} is {tmp_path}/d on rank 0 and {tmp_path}/e on rank 1"
        assert told in first[f"other {call}"]
        assert f"give every rank the same {name}=" in first[f"other {call}"]
    assert "rank0_only is False on rank 0 and True on rank 1" in first["rank0_only"]
    assert "optimizer_state_dict on rank 0 and state_dict on rank 1" in first["other state"]
    names = {
        **{call: call for call in unfit},
        "wait": "save_checkpoint",
        "max_shard_bytes": "save_weights",
        "extra": "save_checkpoint",
        "keep": "save_checkpoint",
        "beside": "save_checkpoint",
        "shards": "save_weights",
        "weights": "load_weights",
        "state": "load_state_dict",
        "optimizer": "load_optimizer_state_dict",
    }
    for name, call in names.items():
        assert first[name] == f"InvalidInputError: rank 1 refused {call}: {own[name]}"
    assert first["fetched"] == second["fetched"]
    assert "extra is 2 on rank 0 and 1 on rank 1" in first["other extra"]
    assert "different calls: save_weights on rank 0 and load_weights on rank 1;" in first["calls"]


def test_what_one_rank_cannot_begin_none_does(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[2])
    outcomes = run_ranks(2, disorder.beginnings, build)
    assert not isinstance(outcomes[0], str), outcomes
    (first, same, loss), (second, also, other) = outcomes
    assert same
    assert also
    assert loss == other
    assert float(loss) == pytest.approx(Reference.of_seed().step(batches(1)[0]), rel=1e-5)
    for call, name in (("initialize", "raises"), ("initialize", "makes"), ("dtensors", "fits")):
        own = second[name].removeprefix("InvalidInputError: ")
        assert first[name] == f"InvalidInputError: rank 1 refused {call}: {own}"
    raised = "init raised ValueError: no such config (at disorder.py:"
    assert second["raises"].startswith(f"InvalidInputError: {raised}")
    assert "init makes another model than the one compiled" in second["makes"]
    assert "dtensors('x'): give a torch DeviceMesh" in second["fits"]
    assert first["holds"] == second["holds"]
    assert "different contents: 'init' is not the same on ranks 0, 1" in first["holds"]
    assert first["mesh"] == second["mesh"]
    assert "mesh is None on rank 0 and DeviceMesh(" in first["mesh"]


@pytest.mark.parametrize("virtual", [False, True])
def test_a_closed_trainer_says_so_in_every_call(tmp_path: Path, virtual: bool) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[2])
    if virtual:
        with open_trainer(build, virtual=True) as trainer:
            trainer.step(batches(1)[0])
        found = [disorder.each_call(trainer, tmp_path)]
    else:
        found = run_ranks(2, disorder.closed, build, tmp_path)
    for each in found:
        assert set(each.values()) == {CLOSED}, each


def test_a_closed_session_says_so_in_every_call(tmp_path: Path) -> None:
    build = stateful_build(tmp_path / "b", "cache", "a=2,b=1")
    for outcome in run_ranks(2, disorder.closed_session, build, tmp_path):
        said = "InvalidInputError: this session is closed; load it again"
        assert set(outcome.values()) == {said}, outcome


def test_after_a_failure_every_call_says_which_it_was(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[2])
    for first, later in run_ranks(2, disorder.failed, build, tmp_path):
        failure = first.removeprefix("RankFailure: ")
        assert failure.startswith("rank 1 failed: aten.relu.default -> ")
        assert failure.endswith(": out of memory")
        (said,) = set(later.values())
        earlier = "RuntimeFailure: this trainer failed earlier in Trainer.step"
        assert said == f"{earlier}: {failure}; {REMEDY}"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raise", r"ValueError: out of luck (at disorder.py:"),
        ("exit", "it called sys.exit(3)"),
        ("return", "its script ended, or closed the session"),
    ],
)
def test_who_leaves_between_steps_is_named(tmp_path: Path, how: str, why: str) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[4])
    first, left, third = run_ranks(3, disorder.leave, build, how)
    assert left == "left"
    for said in (first, third):
        assert said.startswith(f"! rank 1 failed: it left the program after step 0: {why}"), said
        assert " waited for it in step 1 at comm." in said or "waited for it in Trainer" in said


def test_half_read_state_of_an_optimizer_is_given_anew(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[1])
    with open_trainer(build, virtual=True) as trainer:
        trainer.step(batches(1)[0])
        trainer.save_checkpoint(tmp_path / "c")
        (data,) = sorted((tmp_path / "c").glob("*.distcp"))[:1]
        content = bytearray(data.read_bytes())
        content[-100] ^= 1
        data.write_bytes(bytes(content))
    with open_trainer(build, virtual=True) as trainer:
        damaged, refused, half, right = disorder.absent_after_damage(trainer, tmp_path / "c")
    assert damaged.startswith("DamagedCheckpoint: ")
    assert refused.startswith("InvalidInputError: the build has no values of ")
    assert half.startswith("InvalidInputError: the build has no values of 'exp_avg")
    assert float(right) > 0


def test_parts_of_a_batch_are_recognized(tmp_path: Path) -> None:
    training = training_build(tmp_path / "t", LAYOUTS[1])
    compile(Model(), batches(1)[0][0], mesh="2", strategy="none").save(tmp_path / "i")
    for part, right, asked in run_ranks(2, disorder.parts, training, tmp_path / "i"):
        assert "input 'x' is f32[3, 4], it must be f32[6, 4]" in part
        assert part.endswith(f"\n{GLOBAL_BATCH}")
        assert "pass local=True" in part
        assert float(right) > 0
        assert asked.endswith(" it must be f32[6, 4]\nevery rank needs the global batch")


def test_a_save_that_fails_beside_is_told_by_one_traceback(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[0])
    (tmp_path / "file").write_text("in the way")
    trainer = open_trainer(build, virtual=True)
    trainer.save_checkpoint(tmp_path / "file" / "c", wait=False)
    with pytest.raises(InvalidInputError, match="can't write") as caught:
        trainer.close()
    assert caught.value.__cause__ is None


def test_a_ranks_own_error_is_its_own_however_slow_the_others_are(tmp_path: Path) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[4])
    outcomes = run_ranks(3, disorder.slow_to_say, build)
    assert outcomes[0] == "! rank 0 failed: out of luck"


@pytest.mark.parametrize("victim", [0, 1])
def test_who_sleeps_in_a_call_is_told_from_who_waits_in_it(tmp_path: Path, victim: int) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[2])
    outcomes = run_ranks(2, disorder.sleep_in_save, build, tmp_path, victim)
    assert outcomes[victim] == 17
    said = outcomes[1 - victim]
    late = "did not arrive at Trainer.save_checkpoint within 3 s"
    found = f"RankFailure: rank {victim} failed: it {late}; it has been in Trainer.save_checkpoint "
    assert said.startswith(found), said


@pytest.mark.parametrize("connects", [False, True])
def test_a_rank_killed_while_it_saves_beside_is_named_at_the_end(
    tmp_path: Path, connects: bool
) -> None:
    build = training_build(tmp_path / "b", LAYOUTS[2])
    killed, told = run_ranks(2, disorder.killed_while_saving, build, tmp_path, connects)
    assert killed == -9
    assert told.startswith("RankFailure: rank 0 failed: it ended without a word (killed?)")
