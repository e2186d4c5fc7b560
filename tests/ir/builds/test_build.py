"""Build folders: written whole or not at all, and read with every defect named."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from autopar.base import folder as folder_module
from autopar.base.errors import InvalidInputError, Loc
from autopar.ir import program_pb2
from autopar.ir.builds.files import Build, check_output, read_build, write_build
from autopar.ir.builds.manifest import FileEntry, Manifest, ReportEntry, WeightDigests
from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from tests.mutations.targets.builds import sign

SERIAL = parse_program(
    """
    program "mlp" serial
    mesh tp=2
    input %x: f32[8] replicated ~default
    parameter %w: f32[8@tp] ~annotated
    %y: f32[8@tp] = aten.mul.Tensor(self=%x, other=%w) {i0: 8@tp} ~implied
    return %y
    """
)
RANK = parse_program(
    """
    program executable
    input %x: f32[8]
    parameter %w: f32[4] box [8[tp * 4; 4]]
    %x.1: f32[4] = aten.slice.Tensor(self=%x, dim=0, start=tp * 4, end=tp * 4 + 4)
    %y: f32[4] = aten.mul.Tensor(self=%x.1, other=%w)
    return %y box [8[tp * 4; 4]]
    """
)
DEPLOYMENT = Deployment(
    (RANK,), ("tp",), (RankEntry(0, (0,), 0), RankEntry(0, (1,), 1)), {"tp": ((0, 1),)}
)
REPORT = (ReportEntry("replicated", "aten.sort", "no rule", Loc("m.onnx", 0, "sort"), 32),)


def write(path: Path, weights: bytes | None = b"weights", serial: Program = SERIAL) -> Manifest:
    def write_weights(file: Path) -> tuple[FileEntry, WeightDigests]:
        content = weights or b""
        file.write_bytes(content)
        entry = FileEntry(file.name, hashlib.sha256(content).hexdigest(), len(content))
        return entry, WeightDigests(1 << 20, 7, {"w": (1, 2)})

    return write_build(
        path,
        serial=serial,
        deployment=DEPLOYMENT,
        autopar_version="1.2.3",
        report=REPORT,
        write_weights=None if weights is None else write_weights,
    )


def check_all(build: Build) -> None:
    for file in build.manifest.files:
        build.check_file(file)


def files_in(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def content_of(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in files_in(path)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest = write(tmp_path / "some" / "build")
    build = read_build(tmp_path / "some" / "build")
    assert files_in(build.path) == [
        "manifest.pb",
        "programs/0.pb",
        "ranks.pb",
        "serial.pb",
        "weights.safetensors",
    ]
    assert build.manifest == manifest
    assert manifest.model == "mlp"
    assert manifest.autopar_version == "1.2.3"
    assert manifest.report == REPORT
    assert build.serial == SERIAL
    assert build.deployment == DEPLOYMENT
    assert build.rank_table.ranks == DEPLOYMENT.ranks
    assert build.program(0) == RANK
    assert build.weights_path is not None
    assert build.weights_path.read_bytes() == b"weights"
    check_all(build)


def test_a_build_without_weights(tmp_path: Path) -> None:
    write(tmp_path / "build", weights=None)
    build = read_build(tmp_path / "build")
    assert build.weights_path is None
    check_all(build)


def test_equal_builds_have_equal_bytes_and_digests(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two")
    write(tmp_path / "three", weights=b"others!")
    assert content_of(tmp_path / "one") == content_of(tmp_path / "two")
    digests = [read_build(tmp_path / name).digest for name in ("one", "two", "three")]
    assert digests[0] == digests[1] != digests[2]


def test_a_build_replaces_an_older_one_and_nothing_stays_behind(tmp_path: Path) -> None:
    write(tmp_path / "build", weights=b"old")
    write(tmp_path / "build", weights=None)
    assert read_build(tmp_path / "build").weights_path is None
    assert os.listdir(tmp_path) == ["build"]


def test_a_build_replaces_an_older_one_where_paths_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_exchange", lambda one, other: False)
    write(tmp_path / "build", weights=b"old")
    write(tmp_path / "build", weights=b"new")
    assert read_build(tmp_path / "build").weights_path is not None
    assert (tmp_path / "build" / "weights.safetensors").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["build"]


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert read_build(tmp_path / "real").serial == SERIAL


def interrupted(path: Path) -> None:
    def write_weights(file: Path) -> NoReturn:
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_build(
            path,
            serial=SERIAL,
            deployment=DEPLOYMENT,
            autopar_version="1",
            write_weights=write_weights,
        )


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path / "build")
    assert os.listdir(tmp_path) == []


def test_an_interrupted_write_leaves_the_old_build_whole(tmp_path: Path) -> None:
    write(tmp_path / "build")
    before = content_of(tmp_path / "build")
    interrupted(tmp_path / "build")
    assert content_of(tmp_path / "build") == before
    assert os.listdir(tmp_path) == ["build"]


KILLED = """
import os, signal, sys
from pathlib import Path
from typing import NoReturn
from autopar.ir.builds.files import write_build
from tests.ir.builds.test_build import DEPLOYMENT, SERIAL

def write_weights(file):
    file.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

write_build(Path(sys.argv[1]), serial=SERIAL, deployment=DEPLOYMENT, autopar_version="1",
            write_weights=write_weights)
"""


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_build_whole(
    tmp_path: Path,
) -> None:
    write(tmp_path / "build")
    before = content_of(tmp_path / "build")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "build")],
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    assert content_of(read_build(tmp_path / "build").path) == before
    write(tmp_path / "build", weights=b"next")
    assert os.listdir(tmp_path) == ["build"]


def test_what_a_killed_write_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".build.new-1"
    (left / "programs").mkdir(parents=True)
    (left / "programs" / "0.pb").write_bytes(b"half")
    write(tmp_path / "build")
    assert os.listdir(tmp_path) == ["build"]


def test_what_another_write_is_busy_with_stays(tmp_path: Path) -> None:
    busy = tmp_path / ".build.new-1"
    busy.mkdir()
    descriptor = os.open(busy, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        write(tmp_path / "build")
        assert busy.is_dir()
    finally:
        os.close(descriptor)


def test_a_swap_that_was_killed_midway_is_undone_before_the_next(tmp_path: Path) -> None:
    write(tmp_path / "build", weights=b"old")
    (tmp_path / "build").rename(tmp_path / ".build.old")
    interrupted(tmp_path / "build")
    assert (tmp_path / "build" / "weights.safetensors").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["build"]


@pytest.mark.parametrize("name", ["notes.txt", "programs/notes.txt"])
def test_a_folder_with_other_things_is_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "build" / "programs").mkdir(parents=True)
    (tmp_path / "build" / name).write_text("mine")
    with pytest.raises(InvalidInputError, match="not empty and not an autopar build; choose"):
        write(tmp_path / "build")
    assert (tmp_path / "build" / name).read_text() == "mine"


def test_a_build_with_other_things_in_it_is_not_replaced(tmp_path: Path) -> None:
    write(tmp_path / "build")
    (tmp_path / "build" / "out.npz").write_text("mine")
    with pytest.raises(InvalidInputError, match=r"holds other files too: out\.npz; move them"):
        write(tmp_path / "build")
    assert (tmp_path / "build" / "out.npz").read_text() == "mine"


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "build" / "programs").mkdir(parents=True)
    write(tmp_path / "build")
    assert read_build(tmp_path / "build").serial == SERIAL


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "build").write_text("mine")
    with pytest.raises(InvalidInputError, match="is not a folder; choose another folder with -o"):
        write(tmp_path / "build")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(
        InvalidInputError, match=r"can't write .*file.*choose another folder with -o"
    ):
        write(tmp_path / "file" / "build")


def test_a_place_can_be_refused_before_the_work(tmp_path: Path) -> None:
    write(tmp_path / "old")
    for free in ("old", "new", "deep/down/new"):
        check_output(tmp_path / free)
    assert os.listdir(tmp_path) == ["old"]
    (tmp_path / "file").write_text("mine")
    (tmp_path / "old" / "out.npz").write_text("mine")
    with pytest.raises(InvalidInputError, match=r"holds other files too: out\.npz"):
        check_output(tmp_path / "old")
    with pytest.raises(InvalidInputError, match="choose another"):
        check_output(tmp_path / "file")
    with pytest.raises(InvalidInputError, match=r"can't write .*is a file"):
        check_output(tmp_path / "file" / "build")


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_weights(file: Path) -> None:
        raise OSError(28, "No space left on device", str(file))

    with pytest.raises(InvalidInputError, match="No space left on device"):
        write_build(
            tmp_path / "build",
            serial=SERIAL,
            deployment=DEPLOYMENT,
            autopar_version="1",
            write_weights=write_weights,
        )
    assert os.listdir(tmp_path) == []


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("serial.pb", flip_last_byte, r"serial\.pb is damaged: its checksum"),
        ("ranks.pb", flip_last_byte, r"ranks\.pb is damaged: its checksum"),
        ("programs/0.pb", flip_last_byte, r"0\.pb is damaged: its checksum"),
        ("weights.safetensors", flip_last_byte, r"weights\.safetensors is damaged: its checksum"),
        ("serial.pb", shorten, r"serial\.pb has \d+ bytes instead of \d+"),
        ("weights.safetensors", shorten, "has 6 bytes instead of 7"),
        ("ranks.pb", Path.unlink, r"ranks\.pb is missing, so the build is incomplete"),
        ("manifest.pb", Path.unlink, r"has no manifest\.pb, so it isn't an autopar build"),
        ("manifest.pb", shorten, r"manifest\.pb: not a file of autopar's, or truncated"),
        ("manifest.pb", flip_last_byte, r"manifest\.pb: damaged: its content isn't what was"),
    ],
)
def test_damage_is_found(
    tmp_path: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    write(tmp_path / "build")
    damage(tmp_path / "build" / name)
    with pytest.raises(InvalidInputError, match=message):
        read_everything(tmp_path / "build")


def read_everything(path: Path) -> None:
    build = read_build(path)
    assert build.serial
    assert build.deployment
    check_all(build)


def test_any_flipped_bit_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "build")
    whole = (tmp_path / "build" / "manifest.pb").read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        (tmp_path / "build" / "manifest.pb").write_bytes(damaged)
        with pytest.raises(InvalidInputError, match=r"manifest\.pb"):
            read_build(tmp_path / "build")


def test_a_build_from_before_there_were_digests_is_read(tmp_path: Path) -> None:
    write(tmp_path / "build")
    path = tmp_path / "build" / "manifest.pb"
    file = program_pb2.File.FromString(path.read_bytes())
    file.format_version = 6
    file.sha256 = b""
    file.manifest.ClearField("weight_digests")
    path.write_bytes(file.SerializeToString())
    build = read_build(tmp_path / "build")
    assert build.manifest.weights is None
    check_all(build)
    flip_last_byte(tmp_path / "build" / "weights.safetensors")
    with pytest.raises(InvalidInputError, match=r"weights\.safetensors is damaged"):
        check_all(build)


def test_a_missing_build(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="nowhere doesn't exist; expected a folder"):
        read_build(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="file is a file; expected a folder"):
        read_build(tmp_path / "file")


def test_a_program_that_a_build_lacks(tmp_path: Path) -> None:
    write(tmp_path / "build")
    with pytest.raises(InvalidInputError, match=r"the build has no programs/7\.pb"):
        read_build(tmp_path / "build").program(7)


@pytest.mark.parametrize("name", ["serial.pb", "programs/0.pb"])
def test_a_program_that_breaks_the_rules(tmp_path: Path, name: str) -> None:
    """Though its checksum is right: anyone can make one."""
    write(tmp_path / "build")
    path = tmp_path / "build" / name
    file = program_pb2.File.FromString(path.read_bytes())
    del file.program.functions[0].outputs[:]
    path.write_bytes(file.SerializeToString())
    sign(tmp_path / "build")
    build = read_build(tmp_path / "build")
    with pytest.raises(InvalidInputError) as raised:
        _ = build.serial if name == "serial.pb" else build.program(0)
    message = str(raised.value)
    assert message.startswith(f"{path}: the ")
    assert "the outputs of the signature: expected the outputs of main, (), got (%y)" in message
    assert message.endswith("compile the model again, or copy the whole folder again")


def test_layouts_that_break_the_rules(tmp_path: Path) -> None:
    """As an op that is split along what it doesn't have."""
    write(tmp_path / "build")
    path = tmp_path / "build" / "serial.pb"
    file = program_pb2.File.FromString(path.read_bytes())
    file.program.op_dists[0].factors[0].name = file.program.name
    path.write_bytes(file.SerializeToString())
    sign(tmp_path / "build")
    build = read_build(tmp_path / "build")
    with pytest.raises(InvalidInputError, match="expected one of i0, got 'mlp'") as raised:
        build.check_distribution()
    assert str(raised.value).startswith(f"{path}: the serial program")
