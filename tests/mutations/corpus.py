"""Cases that failed once, with what was wrong then; of each defect one or two.

What a mutation of a build or of a checkpoint is depends on what the compiler wrote, too: where that
changes, its case is another one. So each defect has a test of its own, beside what was mended.
"""

from __future__ import annotations

from collections.abc import Mapping

_DEEP = "nested more deeply than Python's stack: RecursionError"
_UNSOUND = "a program that breaks the rules, correctly signed, was run: "

CORPUS: Mapping[str, str] = {
    "onnx:489": "a tensor of 32 GiB: asked for, not refused; then KeyError while it was priced",
    "onnx:32": "an open size that a weight fixes, twice: KeyError",
    "onnx:1412": "30 functions that each call the last nine times: more than 2 GiB",
    "annotations:44": _DEEP,
    "annotations:86": _DEEP,
    "annotations:106": "an alias of what it stands in: RecursionError",
    "annotations:344": "a billion laughs: hung",
    "plan:10": _DEEP,
    "plan:106": "a mapping in the place of an entry: IndexError",
    "plan:304": "no entry in the place of one: IndexError",
    "cluster:8": _DEEP,
    "cluster:148": "a billion laughs: more than 2 GiB",
    "cluster:174": "a number of 5,000 digits: ValueError",
    "cluster:266": "a date that is none: ValueError",
    "words:64": "a mesh of 5,000 digits: ValueError",
    "words:149": "a cluster called more than a file can be: OSError",
    "inputs:34": "a size of more than 64 bits in an archive: OverflowError",
    "inputs:46": "a header that is cut short: TokenError",
    "inputs:146": "a size of more than 64 bits: OverflowError",
    "inputs:212": "a negative size: OverflowError",
    "checkpoint:0": "metadata of odd opcodes: UnpicklingError",
    "checkpoint:1": "metadata with a flipped bit: UnicodeDecodeError",
    "checkpoint:9": "metadata with a flipped bit: UnpicklingError",
    "build:38": "a rank's box outside of its tensor: IndexError",
    "build:42": _UNSOUND + "RuntimeError while weights were read",
    "build:60": _UNSOUND + "RuntimeError while weights were read",
    "build:104": _UNSOUND + "KeyError while its code was written",
    "build:120": _UNSOUND + "KeyError of an input without a port",
    "build:198": _UNSOUND + "IndexError of an output that there isn't",
    "build:278": "an offset of 2^63 - 1: IndexError",
    "training-build:68": _UNSOUND + "KeyError of an input without a port",
    "training-build:78": _UNSOUND + "IndexError of a loss that there isn't",
    "training-build:176": _UNSOUND + "KeyError of an op without operands",
}
"""By `TARGET:SEED`."""
