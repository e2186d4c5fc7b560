"""Where the store listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from autopar.runtime.job.serving import listening_socket
from tests.runtime.execute.openings import listening
from tests.runtime.execute.test_openings import add_build
from tests.runtime.job.real import run_ranks


def test_all_sockets_of_a_local_job_listen_on_loopback(tmp_path: Path) -> None:
    """The store's and those of gloo, while two sessions are open."""
    found = run_ranks(4, listening, add_build(tmp_path / "b"))
    assert all(found), "nobody listens anywhere"
    assert {address for each in found for address in each} == {"127.0.0.1"}


def test_an_address_of_the_host_is_listened_on_alone() -> None:
    with listening_socket("127.0.0.1", 0, local=True) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("place", ["127.0.1.1", "192.0.2.77"])
def test_a_name_that_leads_nowhere_else_is_listened_for_everywhere(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host's own name leads to loopback on some systems, that of a service to no host."""
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: [entry])
    with listening_socket("somewhere", 0, local=False) as listener:
        assert listener.getsockname()[0] in ("::", "0.0.0.0")


def test_a_port_that_is_taken_is_said() -> None:
    with listening_socket("127.0.0.1", 0, local=True) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listening_socket("127.0.0.1", port, local=True)
