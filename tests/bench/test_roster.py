import importlib.util

import pytest

from bench.network.roster import INGEST_PEERS, IPC_PEERS, PEERS, Peer, find_program


def test_every_peer_has_a_module() -> None:
    for peers in (PEERS, IPC_PEERS, INGEST_PEERS):
        assert len({peer.name for peer in peers}) == len(peers)
    for peer in (*PEERS, *IPC_PEERS, *INGEST_PEERS):
        assert importlib.util.find_spec(peer.module) is not None


def test_an_unavailable_peer_states_what_is_missing() -> None:
    package = Peer("x", "x", "x", package="no_such_package", distribution="no-such")
    assert package.missing == "the package no-such is not installed"
    program = Peer("x", "x", "x", program="no-such-program")
    assert program.missing == "there is no no-such-program on PATH"


def test_ours_and_plain_streams_are_always_available() -> None:
    assert {"aqueduct", "aqueduct-tcp", "streams"} <= {
        peer.name for peer in PEERS if peer.missing is None
    }


def test_a_variable_can_set_the_path_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_PROGRAM", raising=False)
    assert find_program("no-such-program") is None
    monkeypatch.setenv("NO_SUCH_PROGRAM", "/somewhere/program")
    assert find_program("no-such-program") == "/somewhere/program"
