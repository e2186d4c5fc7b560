"""What a token costs: a decoder whose past stays on the ranks, beside ONNX Runtime's caller.

    python benchmarks/generation.py
    python benchmarks/generation.py --export gpt2/ --model gpt2

A decoder of 4 layers, 8 heads of 64, in ONNX: by ONNX Runtime, whose caller hands keys and values
on from call to call, and by sessions that keep them, on one process and on two. All of them
generate greedily from the same prompt, in turns of 64 tokens; they must be the same tokens. Each
computes with one thread. The median milliseconds per token of each turn are printed: where keys and
values are copied, they grow with the length.

With `--export`, a folder with `model.onnx` as optimum exports it, and the `--model` of transformers
that it was exported from: CPU milliseconds per token beside those of its own `generate`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import autopar
from tests.runtime.serving.decoder import STATE, OneDevice, Sizes, write_decoder

SIZES = Sizes(layers=4, heads=8, width=64, entries=1000, places=2048)
PROMPT, TURN = 16, 64

Ids = npt.NDArray[np.int64]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1024, help="how many to generate")
    parser.add_argument("--batch", type=int, default=4, help="sequences at a time")
    parser.add_argument("--export", type=Path, help="a folder with model.onnx")
    parser.add_argument("--model", help="the same model of transformers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.export is not None:
        beside_transformers(options.export, options.model, options.batch)
        return
    with tempfile.TemporaryDirectory() as folder:
        beside_onnx_runtime(Path(folder), options.batch, options.tokens)


def beside_onnx_runtime(folder: Path, batch: int, tokens: int) -> None:
    """Prints the time per token as sequences grow."""
    path = write_decoder(folder, SIZES)
    device = OneDevice(path, SIZES)
    prompt = np.random.default_rng(0).integers(0, SIZES.entries, (batch, PROMPT))
    decode: dict[str, Any] = {"state": STATE, "dims": {"length": "1~1:"}}
    with (
        autopar.InferenceSession(path, **decode) as one,
        autopar.InferenceSession(path, mesh=2, strategy="tensor", **decode) as two,
    ):
        runs = {
            "onnxruntime": by_hand(device.run, prompt),
            "1 process": autopar.stream(one, prompt, max_new_tokens=tokens),
            "2 processes": autopar.stream(two, prompt, max_new_tokens=tokens),
        }
        print(f"{'tokens':>8}" + "".join(f"{name:>16}" for name in runs) + "   ms per token")
        for at in range(TURN, tokens + 1, TURN):
            taken = {name: turn(run) for name, run in runs.items()}
            first = taken["onnxruntime"][1]
            assert all(np.array_equal(first, made) for _, made in taken.values()), "other tokens"
            print(f"{at:>8}" + "".join(f"{seconds * 1e3:>16.2f}" for seconds, _ in taken.values()))


def turn(tokens: Iterator[Ids]) -> tuple[float, Ids]:
    """Returns the median seconds that some tokens take, and these."""
    seconds, found = [], []
    for _ in range(TURN):
        start = time.perf_counter()
        found.append(next(tokens))
        seconds.append(time.perf_counter() - start)
    return median(seconds), np.stack(found, 1)


def by_hand(run: Callable[[dict[str, Any]], Any], prompt: Ids) -> Iterator[Ids]:
    """Yields the tokens of a model that is called with all that it takes."""
    new, at = prompt, 0
    while True:
        end = at + new.shape[1]
        places = np.broadcast_to(np.arange(at, end), new.shape)
        mask = np.ones((len(new), end), np.int64)
        logits = run({"input_ids": new, "attention_mask": mask, "position_ids": places})
        at, new = end, logits[:, -1].argmax(-1)[:, None]
        yield new[:, 0]


def beside_transformers(folder: Path, name: str, batch: int, tokens: int = 128) -> None:
    """Prints the time per token of a model of transformers, and of its export."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(name)
    model.eval()
    ids = np.random.default_rng(0).integers(3, model.config.vocab_size, (batch, PROMPT))
    given = torch.from_numpy(ids)

    def peer() -> Ids:
        found: Ids = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        ).numpy()
        return found

    dims = {"sequence_length": "1~1:"}
    with autopar.InferenceSession(folder / "model.onnx", state=STATE, dims=dims) as session:
        ways = (peer, lambda: autopar.generate(session, ids, max_new_tokens=tokens))
        first, second = (way() for way in ways)
        assert np.array_equal(first, second), "other tokens"
        rounds = [[_seconds(way) / tokens * 1e3 for way in ways] for _ in range(5)]
    theirs, ours = (median(each) for each in zip(*rounds, strict=True))
    print(f"transformers {theirs:.2f} CPU ms per token, autopar {ours:.2f}: {ours / theirs:.2f}")


def _seconds(way: Callable[[], Any]) -> float:
    start = time.process_time()
    way()
    return time.process_time() - start


if __name__ == "__main__":
    main()
