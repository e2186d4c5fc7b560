"""Mutations of what arrays are stored in: .npy, .npz and .safetensors, by their headers."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from random import Random

from tests.mutations import odd, trees
from tests.mutations.byte_level import damage

_DESCRIPTIONS = (
    *("<f4", ">f4", "<f8", "<f2", "|b1", "<i8", "<u8", "<c8", "<c16", "<U5", "|S3", "|O", "|V4"),
    *("<f16", "<M8[s]", "f", "", "<f99", [("a", "<f4")], [["a", "<f4", [3]]], None, 5, "(2,)<f4"),
)
_NPY_VERSIONS = (b"\1\0", b"\2\0", b"\3\0", b"\4\0", b"\0\0", b"\xff\xff")
_NAMES = ("", "../../x.npy", "/x.npy", "x", "X.npy", "x.npy/", "x.txt", "a\\b.npy", "x.npy")


def mutate_npy(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Returns a .npy file with another header, and what was done."""
    length = struct.unpack("<H", content[8:10])[0]
    fields = {"descr": "<f4", "fortran_order": False, "shape": (8, 16)}
    kind = chance.randrange(7)
    if kind < 2:
        fields["shape"] = _shape(chance)
    elif kind == 2:
        fields["descr"] = chance.choice(_DESCRIPTIONS)
    elif kind == 3:
        fields, _ = trees.mutate(fields, chance)
    text = repr(fields)
    if kind == 4:
        text = chance.choice(("", "{", "(" * 9000, "[" * 90, "{'a': 10**10**9}", "1" * 20000))
    version = chance.choice(_NPY_VERSIONS) if kind == 5 else b"\1\0"
    header = text.encode("utf-8", "surrogatepass") + b"\n"
    stated = min(odd.integer(chance, 0, 65535), 65535) if kind == 6 else min(len(header), 65535)
    packed = struct.pack("<I", stated) if version[0] in (2, 3) else struct.pack("<H", stated)
    changed = b"\x93NUMPY" + version + packed + header + content[10 + length :]
    return changed, f"header {text:.80} of {stated} bytes, version {version!r}"


def _shape(chance: Random) -> tuple[object, ...]:
    rank = chance.choice((0, 1, 2, 2, 3, 33, 65))
    shape: list[object] = [odd.integer(chance) for _ in range(rank)]
    if rank and chance.random() < 0.3:
        shape[0] = chance.choice(("x", None, 1.5, True, (1,)))
    return tuple(shape)


def mutate_npz(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Returns a .npz file with other members, or another directory, and what was done."""
    with zipfile.ZipFile(io.BytesIO(content)) as read:
        members = [(name, read.read(name)) for name in read.namelist()]
    done = []
    for at, (name, data) in enumerate(members):
        kind = chance.randrange(5)
        if kind == 0:
            name = chance.choice(_NAMES)
            done.append(f"a member called {name!r}")
        elif kind == 1:
            data, what = mutate_npy(data, chance)
            done.append(what)
        elif kind == 2:
            data, what = damage(data, chance)
            done.append(what)
        members[at] = name, data
    if chance.random() < 0.3:
        members += members[: chance.choice((1, 1, 2))] * chance.choice((1, 500))
        done.append(f"{len(members)} members")
    packing = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing) as write:
        for name, data in members:
            _write_quietly(write, name, data)
    changed = file.getvalue()
    if chance.random() < 0.4:
        changed, what = _mutate_directory(changed, chance)
        done.append(what)
    return changed, ", ".join(done) or "written again"


def _write_quietly(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Writes a member; a ZipInfo of its own, as names that are there already cause a warning."""
    info = zipfile.ZipInfo(name)
    info.compress_type = file.compression
    if name not in file.namelist():
        file.writestr(info, data)


def _mutate_directory(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Changes a 16-bit field of a member's entry in the directory: flags, method, sizes, places."""
    start = content.rfind(b"PK\1\2")
    if start < 0:
        return damage(content, chance)
    at = start + chance.choice((4, 6, 8, 10, 16, 20, 22, 24, 26, 28, 30, 32, 38, 42, 44))
    changed = bytearray(content)
    changed[at : at + 2] = chance.choice((b"\0\0", b"\1\0", b"\xff\xff", b"\x09\0", b"\x62\0"))
    return bytes(changed), f"directory entry changed at {at - start}"


def mutate_safetensors(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Returns a .safetensors file with another header, and what was done."""
    length = struct.unpack("<Q", content[:8])[0]
    header, rest = content[8 : 8 + length], content[8 + length :]
    kind = chance.randrange(8)
    if kind == 0:
        stated = odd.integer(chance, 0, 2**64 - 1)
        return struct.pack("<Q", stated) + content[8:], f"header of {stated} bytes"
    if kind == 1:
        changed, done = damage(header, chance)
    elif kind == 2:
        changed = chance.choice((b"[" * 5000, b"{}", b"[]", b"null", b"", b'{"x":' * 500, b"1e999"))
        done = f"header {changed[:20]!r}"
    else:
        tree, done = _mutate_entries(json.loads(header), chance)
        changed = json.dumps(tree, default=str).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(changed)) + changed + rest, done


def _mutate_entries(tree: dict[str, object], chance: Random) -> tuple[object, str]:
    """Changes anything, or what an entry says of its tensor."""
    named = [name for name, entry in tree.items() if isinstance(entry, dict) and "dtype" in entry]
    if chance.random() < 0.4 or not named:
        return trees.mutate(tree, chance)
    name = chance.choice(named)
    entry = tree[name]
    assert isinstance(entry, dict)
    dtypes = ("F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F4", "C64", "U64", "f32", "")
    field, value = chance.choice(
        [
            ("dtype", chance.choice(dtypes)),
            ("shape", list(_shape(chance))),
            ("data_offsets", [odd.integer(chance), odd.integer(chance)]),
            ("shape", entry["shape"][::-1]),
        ]
    )
    entry[field] = value
    return tree, f"{name}: {field} {value!r:.60}"
