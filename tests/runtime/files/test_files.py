"""Input and output files of the user."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from autopar.base.errors import InvalidInputError
from autopar.runtime.files.atomic_write import atomic_write
from autopar.runtime.files.tensors import read_arrays, save_arrays


def test_arrays_come_back_as_saved(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True, False])}
    for suffix in (".npz", ".safetensors"):
        path = tmp_path / f"arrays{suffix}"
        save_arrays(path, tensors)
        found = read_arrays([str(path)], {"a": ("f32", (2, 3)), "b": ("bool", (2,))})
        assert all(torch.equal(torch.as_tensor(found[n]), t) for n, t in tensors.items())


def test_one_array_is_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    found = read_arrays([f"x={tmp_path / 'a.npy'}"], {})
    assert isinstance(found["x"], np.memmap)


def test_what_npz_cannot_hold_is_said(tmp_path: Path) -> None:
    tensors = {"logits": torch.ones(1, dtype=torch.bfloat16)}
    with pytest.raises(InvalidInputError, match=r"output 'logits' is bf16.*\.safetensors"):
        save_arrays(tmp_path / "a.npz", tensors)
    save_arrays(tmp_path / "a.safetensors", tensors)


def headed(header: str) -> bytes:
    """A .npy file without elements."""
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("x={0}/missing.npy", "can't read input .*missing.npy"),
        ("{0}/missing.npz", "can't read input .*missing.npz"),
        ("{0}/a.txt", "expected NAME=FILE.npy"),
        ("x={0}/a.txt", "expected a .npy file"),
        ("x={0}/bad.npy", "can't read input .*bad.npy"),
        ("{0}/bad.npz", "can't read input .*bad.npz"),
        ("x={0}/cut.npy", r"can't read input .*cut.npy: .*EOF in multi-line"),
        ("x={0}/long.npy", "can't read input .*long.npy: Python int too large"),
        ("{0}/long.npz", r"can't read input .*long.npz: 'x' has shape \[1844.*, which no tensor"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, spec: str, message: str) -> None:
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    (tmp_path / "bad.npz").write_bytes(b"nonsense")
    (tmp_path / "cut.npy").write_bytes(headed("{'shape': ("))
    long = headed(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**64},)}}")
    (tmp_path / "long.npy").write_bytes(long)
    with zipfile.ZipFile(tmp_path / "long.npz", "w") as archive:
        archive.writestr("x.npy", long)
    with pytest.raises(InvalidInputError, match=message):
        read_arrays([spec.format(tmp_path)], {})


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"") -> bytes:
    """Returns an array file of this header."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"
    return headed(text) + data


def archive(path: Path, content: bytes, count: int = 0) -> None:
    """Writes an archive with an array `x`, and zeros behind its content."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("x.npy", "w") as member,
    ):
        member.write(content)
        for _ in range(count):
            member.write(bytes(1 << 20))


@pytest.mark.parametrize(
    "content",
    [
        npy("(268435456,)"),
        npy("(2, 134217728)"),
        npy("(3,)", "'<f8'"),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", (1 << 32) - 1),
    ],
)
def test_a_bomb_is_not_read(tmp_path: Path, content: bytes) -> None:
    """A GiB of zeros takes a MiB in an archive."""
    archive(tmp_path / "a.npz", content, 64)
    tracemalloc.start()
    try:
        found = read_arrays([str(tmp_path / "a.npz")], {"x": ("f32", (3,))})
        assert found["x"].is_meta
    except InvalidInputError as error:
        assert "can't read input" in str(error)  # noqa: PT017
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 << 20


HOSTILE = {
    "no header": b"nonsense",
    "too short": npy("(3,)"),
    "negative": npy("(-3,)"),
    "overflow": npy("(4611686018427387904, 4611686018427387904)"),
    "no shape": npy("3"),
    "floats": npy("(1.5,)"),
    "objects": npy("(3,)", "'|O'", bytes(24)),
    "records": npy("(3,)", "[('a', '<f4')]", bytes(12)),
    "text": npy("(3,)", "'<U4'", bytes(48)),
    "no dtype": npy("(3,)", "'<q77'"),
    "deep": npy("(" * 4000 + ")" * 4000),
    "broken": npy("(3,"),
    "no utf-8": npy("(3,)").replace(b"f4", b"\xff\xfe"),
    "version": npy("(3,)").replace(b"NUMPY\x01", b"NUMPY\x09"),
    "pickle": b"\x80\x04]\x94.",
}


@pytest.mark.filterwarnings("ignore:overflow encountered in scalar multiply")
@pytest.mark.parametrize("kind", HOSTILE)
def test_arrays_that_are_none(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.npy").write_bytes(HOSTILE[kind])
    archive(tmp_path / "a.npz", HOSTILE[kind])
    for spec in (f"x={tmp_path / 'a.npy'}", str(tmp_path / "a.npz")):
        try:
            found = read_arrays([spec], {"x": ("f32", (3,))})["x"]
        except InvalidInputError as error:
            assert str(error).startswith("can't read input ")  # noqa: PT017
        else:
            # numpy maps text and records; that they are no tensors is said with all wrong inputs.
            assert kind in ("records", "text")
            assert isinstance(found, np.memmap)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b"\x08\x00", b"\x63\x00"),
        lambda data: data[: len(data) // 2],
        lambda data: data[:45] + bytes(20) + data[65:],
        lambda data: data.replace(
            b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
        ),
    ],
)
def test_archives_that_are_damaged(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    archive(tmp_path / "a.npz", npy("(3,)", data=bytes(range(12))))
    path = tmp_path / "a.npz"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    with pytest.raises(InvalidInputError, match="can't read input"):
        read_arrays([str(path)], {"x": ("f32", (3,))})


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
def test_what_is_no_file(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / f"device{suffix}").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "device"):
        spec = str(tmp_path / f"{name}{suffix}")
        with pytest.raises(InvalidInputError, match="can't read"):
            read_arrays([f"x={spec}" if suffix == ".npy" else spec], {})


def test_what_is_no_input_is_not_read(tmp_path: Path) -> None:
    tensors = {"x": torch.ones(3), "other": torch.ones(5)}
    for suffix in (".npz", ".safetensors"):
        save_arrays(tmp_path / f"a{suffix}", tensors)
        found = read_arrays([str(tmp_path / f"a{suffix}")], {"x": ("f32", (3,))})
        assert torch.equal(torch.as_tensor(found["x"]), torch.ones(3))
        assert found["other"].is_meta
        assert found["other"].shape == (5,)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, suffix: str) -> None:
    held = multiprocessing.get_context("fork").Process(target=_killed, args=(tmp_path, suffix))
    held.start()
    held.join()
    assert held.exitcode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    with atomic_write(tmp_path / f"a{suffix}"):
        save_arrays(tmp_path / f"a{suffix}", {"x": torch.ones(3)})
        assert len(os.listdir(tmp_path)) == 2
    assert os.listdir(tmp_path) == [f"a{suffix}"]


def test_a_file_system_without_locks_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    (tmp_path / f".a.new-4194305-{os.uname().nodename}.npz").touch()
    (tmp_path / ".a.new-4194305-elsewhere.npz").touch()
    monkeypatch.setattr(fcntl, "flock", refuse)
    save_arrays(tmp_path / "a.npz", {"x": torch.ones(3)})
    assert sorted(os.listdir(tmp_path)) == [".a.new-4194305-elsewhere.npz", "a.npz"]


def test_links_devices_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    link, missing, pipe = (tmp_path / f"{name}.safetensors" for name in ("link", "missing", "pipe"))
    target = tmp_path / "target"
    target.write_text("old")
    link.symlink_to(target)
    missing.symlink_to(tmp_path / "fresh")
    os.mkfifo(pipe)
    tensors = {"x": torch.arange(3)}
    for path in (link, missing):
        save_arrays(path, tensors)
        assert path.is_symlink()
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        save_arrays(pipe, tensors)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert read.result() == target.read_bytes() == (tmp_path / "fresh").read_bytes()
    assert len(os.listdir(tmp_path)) == 5


def _killed(folder: Path, suffix: str) -> None:
    with atomic_write(folder / f"a{suffix}"):
        os.kill(os.getpid(), signal.SIGKILL)


def test_an_input_given_twice(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(InvalidInputError, match="x is given twice"):
        read_arrays([f"x={tmp_path / 'a.npy'}"] * 2, {})


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"must end in .npz or .safetensors"):
        save_arrays(tmp_path / "a.txt", {})
    with pytest.raises(InvalidInputError, match=r"folder .*none doesn't exist"):
        save_arrays(tmp_path / "none" / "a.npz", {})
