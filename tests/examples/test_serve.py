"""The HTTP example: its answers beside ONNX Runtime's, what it refuses, and how it ends."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace

import autopar

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 120.0
"""Seconds that a server may take to start or to answer, on a machine with other work."""

TOLERANCE = 1e-5
SENTENCES = ["the train leaves", "where is the sea", "city " * 40]


class Closes:
    """Stands for a session, and knows whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def __enter__(self) -> Closes:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


@pytest.fixture(scope="module")
def serve() -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("serve")
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json with the words that examples/serve_load.py sends, and a few more."""
    words = [
        "[PAD]",
        "[UNK]",
        "where",
        "does",
        "the",
        "next",
        "train",
        "to",
        "a",
        "city",
        "by",
        "sea",
        "leave",
        "leaves",
        "is",
    ]
    tokenizer = Tokenizer(WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    file = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokenizer.save(str(file))
    return file


@pytest.fixture(scope="module")
def reference(serve: ModuleType) -> onnxruntime.InferenceSession:
    model = str(serve.model_file())
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def encoder(serve: ModuleType, vocabulary: Path, reference: onnxruntime.InferenceSession) -> Any:
    """One that ONNX Runtime computes for."""
    return serve.Encoder(serve.load_tokenizer(vocabulary), reference.run)


@contextmanager
def serving(app: Any) -> Iterator[int]:
    """Serves an application in a thread; yields the port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE)


@pytest.fixture(scope="module")
def port(serve: ModuleType, encoder: Any) -> Iterator[int]:
    with serving(serve.make_app(encoder, Closes())) as port:
        yield port


def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path, body)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, json.loads(answer)


def embed(port: int, sentences: object) -> tuple[int, Any]:
    return ask(port, "POST", "/embed", json.dumps({"sentences": sentences}).encode())


def test_a_sentence_has_one_vector_whatever_it_is_padded_with(port: int) -> None:
    status, together = embed(port, SENTENCES)
    assert status == 200
    assert together["tokens"] == [3, 4, 40]
    assert together["cut"] == []
    for sentence, vector in zip(SENTENCES, together["vectors"], strict=True):
        alone = embed(port, [sentence])[1]["vectors"][0]
        np.testing.assert_allclose(vector, alone, rtol=0, atol=TOLERANCE)


def test_lengths_are_rounded_up_so_that_requests_meet(encoder: Any, serve: ModuleType) -> None:
    shapes = []

    def run(names: list[str], feeds: dict[str, Any]) -> Any:
        shapes.append(feeds["input_ids"].shape)
        return encoder.run(names, feeds)

    spying = serve.Encoder(encoder.tokenizer, run)
    for count in (1, 15, 16, 17):
        spying(["sea " * count])
    assert shapes == [(1, 16), (1, 16), (1, 16), (1, 32)]


def test_what_the_model_has_no_positions_for_is_cut_and_said(port: int) -> None:
    status, answer = embed(port, ["sea", "sea " * 600])
    assert (status, answer["tokens"], answer["cut"]) == (200, [1, 512], [1])


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"{", 400, "the request isn't JSON: "),
        (b"\xff", 400, "the request isn't JSON: "),
        (b"[" * 100_000, 400, "the request isn't JSON: "),
        (b"[]", 400, "a request is {"),
        (b'{"sentences": "one"}', 400, "a request is {"),
        (b'{"sentences": [1]}', 400, "a request is {"),
        (b'{"sentences": ["\\ud800"]}', 400, "a request is {"),
        (b'{"sentences": []}', 400, "a request has 1 to 64 sentences, this one 0"),
        (json.dumps({"sentences": ["a"] * 65}).encode(), 400, "this one 65"),
        (b" " * (1 << 20) + b"{}", 413, "a request has at most 1048576 bytes"),
    ],
)
def test_other_requests_are_refused_with_the_reason(
    port: int, body: bytes, status: int, reason: str
) -> None:
    found, answer = ask(port, "POST", "/embed", body)
    assert found == status
    assert reason in answer["error"]
    assert embed(port, ["the sea"])[0] == 200


def test_other_paths_are_refused(port: int) -> None:
    assert ask(port, "GET", "/nowhere")[0] == 404
    assert ask(port, "GET", "/embed")[0] == 405


def test_health_is_that_of_the_ranks(serve: ModuleType, port: int) -> None:
    assert ask(port, "GET", "/health") == (200, {"status": "ok"})

    def fails(_: list[str]) -> dict[str, list[Any]]:
        raise autopar.AutoparError("rank 2 was ended by SIGKILL")

    with serving(serve.make_app(fails, Closes())) as broken:
        reason = {"error": "rank 2 was ended by SIGKILL"}
        assert ask(broken, "GET", "/health") == (503, reason)
        assert embed(broken, ["a"]) == (503, reason)


def test_the_session_is_closed_with_the_server(serve: ModuleType, encoder: Any) -> None:
    session = Closes()
    with serving(serve.make_app(encoder, session)) as port:
        embed(port, ["a"])
        assert not session.is_closed
    assert session.is_closed


@pytest.mark.parametrize("content", [None, b"{}", b"\0"])
def test_a_tokenizer_that_is_none_is_refused(
    serve: ModuleType, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SystemExit, match=re.escape(f"{file} is no tokenizer: ")):
        serve.load_tokenizer(file)


def test_load_is_put_on_a_server(port: int) -> None:
    done = put_load(port, "--callers", "3", "--seconds", "0.5", "--sentences", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^[1-9]\d* requests in .* per second\np50 .* ms\n$", done.stdout)


def test_load_says_why_requests_fail(serve: ModuleType) -> None:
    with serving(serve.make_app(lambda _: {"vectors": []}, Closes())) as port:
        wrong = put_load(port, "--callers", "2")
        assert wrong.returncode == 1
        assert "failed 2 times: 0 vectors of 1 sentences" in wrong.stdout
    gone = put_load(port, "--callers", "1")
    assert gone.returncode == 1
    assert "failed 1 times: 127.0.0.1" in gone.stdout


def put_load(port: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLES / "serve_load.py", "--address", f"127.0.0.1:{port}"]
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False)


@pytest.mark.models
def test_two_processes_serve_what_onnx_runtime_computes(
    encoder: Any, vocabulary: Path, tmp_path: Path
) -> None:
    command = [sys.executable, EXAMPLES / "serve.py", "--mesh", "2", "--tokenizer", vocabulary]
    log = tmp_path / "log"
    with log.open("w") as told:
        server = subprocess.Popen([*command, "--port", "0"], stdout=told, stderr=told)
    try:
        port = port_of(server, log)
        for sentences in (SENTENCES[:1], SENTENCES):
            status, answer = embed(port, sentences)
            assert status == 200
            expected = encoder(sentences)["vectors"]
            np.testing.assert_allclose(answer["vectors"], expected, rtol=0, atol=TOLERANCE)
        done = put_load(port, "--callers", "4", "--seconds", "1")
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(PATIENCE)
    assert "Traceback" not in log.read_text()


def port_of(server: subprocess.Popen[bytes], log: Path) -> int:
    """Returns the port that a server says in its log, once it does."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends and server.poll() is None:
        found = re.search(r"running on http://127.0.0.1:(\d+)", log.read_text())
        if found:
            return int(found[1])
        time.sleep(0.1)
    pytest.fail(f"the server did not start:\n{log.read_text()}")
