"""Goes on writing a text, token by token: a decoder in ONNX, on as many processes as a mesh has.

    pip install optimum-onnx
    optimum-cli export onnx --model gpt2 --task text-generation-with-past gpt2/
    pip install -e '.[demo,serve]'
    python examples/generate.py gpt2/ "The station is" --mesh 2

The folder holds `model.onnx` and `tokenizer.json`, as exporters write them. Keys and values of past
tokens stay on the ranks.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import autopar

STATE = {"past_key_values.*": "present.*"}
"""What exporters call keys and values, of the past and with the present."""


def main() -> int:
    """Writes the text; returns 0."""
    options = _parser().parse_args()
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    ids = tokenizer.encode(options.prompt).ids
    sampling = {"do_sample": True, "temperature": options.temperature, "seed": options.seed}
    with autopar.InferenceSession(
        options.folder / "model.onnx",
        mesh=options.mesh,
        strategy=options.strategy,
        state=STATE,
        # Most calls hand over one token.
        dims={options.length: "1~1:"},
    ) as session:
        shown = tokenizer.decode(ids)
        print(shown, end="", flush=True)
        for (token,) in autopar.stream(
            session,
            np.array([ids]),
            max_new_tokens=options.tokens,
            **(sampling if options.temperature else {}),
        ):
            ids.append(int(token))
            # A token may be a part of a character, which is shown once it is whole.
            text = tokenizer.decode(ids)
            print(text[len(shown) :], end="", flush=True)
            shown = text
    print()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with model.onnx and tokenizer.json")
    parser.add_argument("prompt", help="the beginning of the text")
    parser.add_argument("--mesh", default="1", help="processes, as 2 or 2x2")
    parser.add_argument("--strategy", default="tensor", help="see autopar compile")
    parser.add_argument("--tokens", type=int, default=40, help="how many to write")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most likely token")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn follows from it")
    parser.add_argument(
        "--length", default="sequence_length", help="what the model calls the length of a prompt"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
