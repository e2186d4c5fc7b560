"""Series of checkpoints: the newest whole one is found, as many as wanted stay, leftovers go."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from autopar.base import claim, folder
from autopar.base.errors import InvalidInputError
from autopar.runtime.api import load
from autopar.runtime.checkpoint import checkpoint
from autopar.runtime.checkpoint.index import DamagedCheckpoint
from autopar.runtime.checkpoint.owner import Owner
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.checkpoint.targets import save_too
from tests.runtime.job.real import run_ranks
from tests.runtime.training.steps import LAYOUTS, assert_same, batches, training_build

DATA, INDEX = "__0_0.distcp", "index.jsonl"
BATCHES = batches(8)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_build(tmp_path_factory.mktemp("build") / "b", LAYOUTS[5])


@pytest.fixture
def trainer(build: Path) -> Iterator[Trainer]:
    with open_trainer(build, virtual=True) as opened:
        yield opened


def train(trainer: Trainer, folder: Path, steps: int, **options: object) -> list[float]:
    losses = []
    while trainer.steps < steps:
        losses.append(trainer.step(BATCHES[trainer.steps]).item())
        trainer.save_checkpoint(folder, **{"keep": 3, **options})  # type: ignore[arg-type]
    return losses


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def step(number: int) -> str:
    return f"step-{number:08}"


@pytest.mark.parametrize("wait", [True, False])
def test_as_many_stay_as_wanted(tmp_path: Path, build: Path, wait: bool) -> None:
    with open_trainer(build, virtual=True) as trainer:
        losses = train(trainer, tmp_path / "s", 6, wait=wait)
    assert names(tmp_path / "s") == [step(4), step(5), step(6)]
    shutil.rmtree(tmp_path / "s" / step(6))
    with open_trainer(build, virtual=True) as trainer:
        assert trainer.resume(tmp_path / "s") == 5
        assert train(trainer, tmp_path / "s", 6) == losses[5:]


def test_the_newest_is_the_one_written_last(tmp_path: Path, trainer: Trainer) -> None:
    train(trainer, tmp_path, 4)
    trainer.load_checkpoint(tmp_path / step(2))
    train(trainer, tmp_path, 3)
    assert names(tmp_path) == [step(2), step(3), step(4)]
    assert trainer.resume(tmp_path) == 3
    trainer.save_checkpoint(tmp_path, keep=1)
    assert names(tmp_path) == [step(3)]


def test_nothing_to_resume(tmp_path: Path, trainer: Trainer) -> None:
    assert trainer.resume(tmp_path / "nowhere") is None
    (tmp_path / "log.txt").touch()
    assert trainer.resume(tmp_path) is None
    assert trainer.steps == 0


def test_a_folder_of_other_things_is_not_where_a_training_starts_anew(
    tmp_path: Path, trainer: Trainer, build: Path
) -> None:
    with pytest.raises(
        InvalidInputError, match=rf"there is no checkpoint in {build}, but .*manifest"
    ):
        trainer.resume(build)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".keep").touch()
    assert trainer.resume(tmp_path / "c") is None
    left_by_a_killed_save(tmp_path / "c" / step(1))
    with pytest.warns(UserWarning, match=rf"only .{step(1)}.new.* an interrupted save left"):
        assert trainer.resume(tmp_path / "c") is None
    trainer.step(BATCHES[0])
    trainer.save_checkpoint(tmp_path / "c", keep=1)
    with pytest.raises(InvalidInputError, match="but c; name the folder that checkpoints were"):
        trainer.resume(tmp_path)


def test_a_file_is_no_folder_for_a_checkpoint(tmp_path: Path, trainer: Trainer) -> None:
    (tmp_path / "model.py").touch()
    with pytest.raises(InvalidInputError, match=r"is not a folder; choose another folder$"):
        trainer.save_checkpoint(tmp_path / "model.py")
    with pytest.raises(InvalidInputError, match=r"it has no index.jsonl, nor a .metadata of plain"):
        trainer.load_checkpoint(tmp_path)


def test_a_single_checkpoint_is_resumed(tmp_path: Path, trainer: Trainer) -> None:
    trainer.step(BATCHES[0])
    trainer.save_checkpoint(tmp_path / "c", extra={"epoch": 7})
    trainer.steps = 9
    assert trainer.resume(tmp_path / "c") == 1
    assert trainer.extra == {"epoch": 7}


def damage(path: Path) -> None:
    content = bytearray((path / DATA).read_bytes())
    content[900] ^= 1
    (path / DATA).write_bytes(content)


def test_damaged_and_incomplete_ones_are_skipped(tmp_path: Path, build: Path) -> None:
    with open_trainer(build, virtual=True) as trainer:
        losses = train(trainer, tmp_path, 5, keep=9)
    damage(tmp_path / step(5))
    (tmp_path / step(4) / INDEX).write_text("nothing")
    shutil.rmtree(tmp_path / step(3))
    (tmp_path / step(3)).mkdir()
    with open_trainer(build, virtual=True) as trainer:
        with pytest.warns(UserWarning, match="skipped a checkpoint") as warned:
            assert trainer.resume(tmp_path) == 2
        said = "\n".join(str(each.message) for each in warned)
        for problem in (
            f"{step(3)} is incomplete",
            f"{step(4)}/{INDEX} is damaged",
            f"{step(5)}/{DATA} isn't what was saved",
        ):
            assert problem in said
        assert [trainer.step(BATCHES[at]).item() for at in range(2, 5)] == losses[2:]


def test_only_damaged_ones_are_an_error(tmp_path: Path, trainer: Trainer) -> None:
    train(trainer, tmp_path, 2)
    for number in (1, 2):
        damage(tmp_path / step(number))
    skipped = pytest.warns(UserWarning, match="skipped a checkpoint")
    with skipped, pytest.raises(DamagedCheckpoint) as raised:
        trainer.resume(tmp_path)
    message = str(raised.value)
    assert f"no checkpoint in {tmp_path} is whole" in message
    assert step(1) in message
    assert step(2) in message


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_of_another_model_is_not_skipped(tmp_path: Path, trainer: Trainer) -> None:
    train(trainer, tmp_path, 1)
    shutil.rmtree(tmp_path / step(1))
    wrong = {"model": {"up.weight": torch.zeros(3)}}
    dcp.save(wrong, checkpoint_id=tmp_path / step(1), no_dist=True)
    with pytest.raises(InvalidInputError, match=r"'model.up.weight' is \[3\], it must be \[8, 4\]"):
        trainer.resume(tmp_path)


def saved_by_torch(trainer: Trainer, folder: Path, step_of_it: int) -> Path:
    """Saves as plain PyTorch does, which writes no index."""
    trainer.save_checkpoint(folder / "c")
    held = {f"model.{name}": tensor for name, tensor in trainer.state_dict().items()}
    state = trainer.optimizer_state_dict()["state"]
    for name, tensors in state.items():
        held.update({f"optimizer.state.{name}.{kind}": each for kind, each in tensors.items()})
    shutil.rmtree(folder / "c")
    dcp.save(held, checkpoint_id=folder / step(step_of_it), no_dist=True)
    return folder / step(step_of_it)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_one_of_plain_pytorch_is_the_newest_if_its_step_is(tmp_path: Path, build: Path) -> None:
    with open_trainer(build, virtual=True) as trainer:
        train(trainer, tmp_path, 3)
        after = trainer.state_dict()
        saved_by_torch(trainer, tmp_path, 7)
    with open_trainer(build, virtual=True) as trainer:
        train(trainer, tmp_path / "elsewhere", 1)
        with pytest.warns(UserWarning, match=f"{step(7)} has no {INDEX}.* counts as the newest"):
            trainer.resume(tmp_path)
        assert_same(trainer.state_dict(), after)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_one_of_plain_pytorch_with_fewer_steps_is_older_and_stays(
    tmp_path: Path, trainer: Trainer
) -> None:
    train(trainer, tmp_path, 2)
    saved_by_torch(trainer, tmp_path, 0)
    train(trainer, tmp_path, 4, keep=1)
    assert names(tmp_path) == [step(0), step(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainer.resume(tmp_path) == 4


def test_one_that_lost_its_index_is_said_to_be_skipped(tmp_path: Path, trainer: Trainer) -> None:
    train(trainer, tmp_path, 3)
    (tmp_path / step(3) / INDEX).unlink()
    with pytest.warns(UserWarning, match=f"skipped .*{step(3)}/{INDEX} is missing"):
        assert trainer.resume(tmp_path) == 2


def test_what_cannot_hold_checkpoints_is_not_nothing(
    tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/f is no folder"):
        load(build, virtual=True, resume=tmp_path / "f")
    with pytest.raises(InvalidInputError, match=f"can't look for .* {tmp_path}/f/s: Not a dir"):
        load(build, virtual=True, resume=tmp_path / "f" / "s")

    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(InvalidInputError, match=r"can't look for checkpoints .*Permission denied"):
        load(build, virtual=True, resume=tmp_path)


def test_load_resumes_or_starts_as_told(tmp_path: Path, build: Path) -> None:
    options = {"virtual": True, "resume": tmp_path / "s"}
    with load(build, **options) as trainer:
        start = trainer.state_dict()
        train(trainer, tmp_path / "s", 2)
        after = trainer.state_dict()
        trainer.save_weights(tmp_path / "w.safetensors")
    with load(build, weights=tmp_path / "w.safetensors", virtual=True) as trainer:
        assert trainer.steps == 0
        assert_same(trainer.state_dict(), after)
    with load(build, weights=build / "weights.safetensors", **options) as trainer:
        assert trainer.steps == 2
        assert_same(trainer.state_dict(), after)
    options["resume"] = tmp_path / "nowhere"
    with load(build, **options) as trainer:
        assert_same(trainer.state_dict(), start)


def test_keep_and_extra_are_checked(tmp_path: Path, trainer: Trainer) -> None:
    for keep in (0, -1, True, 1.5):
        with pytest.raises(InvalidInputError, match="keep 1 checkpoint, or more"):
            trainer.save_checkpoint(tmp_path, keep=keep)  # type: ignore[arg-type]
    for extra in ({1: 2}, (1, 2), {"a": object()}, float("nan")):
        with pytest.raises(InvalidInputError, match="extra= can't be kept in a checkpoint"):
            trainer.save_checkpoint(tmp_path / "c", extra=extra)
    trainer.save_checkpoint(tmp_path / "c")
    with pytest.raises(InvalidInputError, match=r"is a checkpoint; with keep= it is a folder of"):
        trainer.save_checkpoint(tmp_path / "c", keep=2)
    trainer.save_checkpoint(tmp_path / "s", keep=2)
    with pytest.raises(InvalidInputError, match="holds several checkpoints; give keep= to save"):
        trainer.save_checkpoint(tmp_path / "s")
    with pytest.raises(InvalidInputError, match=r"of which resume\(\) takes the newest"):
        trainer.load_checkpoint(tmp_path / "s")


KILLED = """
import os, signal, sys
from pathlib import Path
from autopar.base.folder import replace_folder

def fill(folder):
    (folder / "half").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

replace_folder(Path(sys.argv[1]), fill, lambda folder: None)
"""


def left_by_a_killed_save(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL


def test_leftovers_go_with_the_next_start_and_the_next_save(
    tmp_path: Path, trainer: Trainer
) -> None:
    train(trainer, tmp_path, 2)
    for again in (lambda: trainer.resume(tmp_path), lambda: train(trainer, tmp_path, 3)):
        left_by_a_killed_save(tmp_path / step(9))
        assert len(names(tmp_path)) == 3
        again()
        assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_a_swap_that_was_interrupted_is_completed(tmp_path: Path, trainer: Trainer) -> None:
    train(trainer, tmp_path, 2)
    (tmp_path / step(2)).rename(tmp_path / f".{step(2)}.old")
    assert trainer.resume(tmp_path) == 2
    assert names(tmp_path) == [step(1), step(2)]
    trainer.save_checkpoint(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / ".c.old")
    trainer.load_checkpoint(tmp_path / "c")


def test_without_locks_only_dead_processes_of_this_host_are_cleaned_up_after(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*args: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(claim.fcntl, "flock", no_locks)
    train(trainer, tmp_path, 1)
    left_by_a_killed_save(tmp_path / step(2))
    mine, theirs = (f".{step(2)}.new-{owner}" for owner in (claim.owned_name(os.getpid()), "1-far"))
    for name in (mine, theirs):
        (tmp_path / name).mkdir()
    train(trainer, tmp_path, 2)
    assert names(tmp_path) == sorted([theirs, mine, step(1), step(2)])


def test_who_is_busy_is_left_alone(tmp_path: Path, trainer: Trainer) -> None:
    busy = tmp_path / f".{step(2)}.new-1"
    busy.mkdir()
    descriptor = os.open(busy, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    train(trainer, tmp_path, 2)
    assert busy.is_dir()
    os.close(descriptor)
    train(trainer, tmp_path, 3)
    assert not busy.exists()


def test_two_trainers_in_one_folder(tmp_path: Path, build: Path) -> None:
    with open_trainer(build, virtual=True) as one, open_trainer(build, virtual=True) as other:
        for number in range(4):
            for trainer in (one, other):
                trainer.step(BATCHES[number])
                trainer.save_checkpoint(tmp_path, keep=2, wait=False)
    with open_trainer(build, virtual=True) as trainer, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainer.resume(tmp_path) == 4


@pytest.mark.parametrize("keep", [None, 3])
def test_a_second_job_is_refused_until_the_first_one_has_ended(
    tmp_path: Path, build: Path, keep: int | None
) -> None:
    folder = tmp_path / "s"
    with open_trainer(build, virtual=True) as trainer:
        train(trainer, folder, 2, keep=keep)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for said in run_ranks(4, save_too, build, folder, keep):
            assert f"another process that still runs has saved checkpoints in {folder}: " in said
            assert said.endswith("; choose another folder, or end that process")
        assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert names(tmp_path) == ["s"]
        train(trainer, folder, 3, keep=keep)
    assert run_ranks(4, save_too, build, folder, keep) == [""] * 4


def test_processes_that_were_forked_off_hold_nothing(tmp_path: Path) -> None:
    """They may live longer, as those that load data."""
    owner = Owner()
    owner.hold(tmp_path)
    taken = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child = os.fork()
    if not child:
        time.sleep(60.0)
        os._exit(0)
    try:
        time.sleep(0.5)
        owner.release()
        fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(taken)


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path, trainer: Trainer) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "elsewhere")
    trainer.save_checkpoint(tmp_path / "c")
    trainer.save_checkpoint(tmp_path / "c")
    assert (tmp_path / "c").is_symlink()
    assert names(tmp_path) == ["c", "elsewhere"]
    trainer.load_checkpoint(tmp_path / "c")


def test_a_folder_that_can_only_be_read(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(trainer, tmp_path / "s", 2)
    left_by_a_killed_save(tmp_path / "s" / step(3))

    def read_only(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # Root may write anywhere, so permissions wouldn't show it.
    for name in ("mkdir", "rename", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, read_only)
    monkeypatch.setattr(folder.shutil, "rmtree", read_only)
    assert trainer.resume(tmp_path / "s") == 2
    with pytest.raises(InvalidInputError, match="Read-only file system; write to another disk"):
        trainer.save_checkpoint(tmp_path / "s", keep=2)
    trainer.step(BATCHES[2])


FULL = """
import resource, signal, sys
from autopar.runtime.training.opening import open_trainer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in (0, 1000, 30_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for wait in (True, False):
        trainer = open_trainer(sys.argv[1], virtual=True)
        try:
            trainer.save_checkpoint(sys.argv[2], keep=1, wait=wait)
            trainer.close()
        except Exception as error:
            print(type(error).__name__, error)
"""


def test_files_that_may_not_grow(tmp_path: Path, build: Path) -> None:
    command = [sys.executable, "-c", FULL, str(build), str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = printed.splitlines()
    assert len(lines) == 6
    for line in lines:
        assert line.startswith(f"InvalidInputError can't write {tmp_path}/{step(0)}: ")
        assert "File too large; the limit of the process (ulimit -f)" in line
    assert names(tmp_path) == []


@pytest.mark.parametrize("what", ["write_rectangles", "finish"])
@pytest.mark.parametrize("wait", [True, False])
def test_a_full_disk_says_so_and_training_goes_on(
    tmp_path: Path, build: Path, monkeypatch: pytest.MonkeyPatch, what: str, wait: bool
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_trainer(build, virtual=True) as trainer:
        train(trainer, tmp_path, 2)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, what, full)
            said = rf"can't write {tmp_path}/{step(2)}: .*No space left on device; free some, or"
            if not wait:
                trainer.save_checkpoint(tmp_path, keep=1, wait=False)
            with pytest.raises(InvalidInputError, match=said):
                trainer.save_checkpoint(tmp_path, keep=1)
        assert names(tmp_path) == [step(1), step(2)]
        train(trainer, tmp_path, 3, keep=1)
        assert names(tmp_path) == [step(3)]
