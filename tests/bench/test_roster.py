import importlib.util

from bench.network.roster import IPC_PEERS, PEERS, Peer


def test_every_peer_has_its_module() -> None:
    peers = (*PEERS, *IPC_PEERS)
    assert len({peer.name for peer in peers}) == len(peers)
    for peer in peers:
        assert importlib.util.find_spec(peer.module) is not None


def test_a_peer_that_is_not_there_says_what_is_missing() -> None:
    package = Peer("x", "x", "x", package="no_such_package", distribution="no-such")
    assert package.missing == "the package no-such is not installed"
    program = Peer("x", "x", "x", program="no-such-program")
    assert program.missing == "there is no no-such-program on PATH"


def test_ours_and_plain_streams_are_always_there() -> None:
    assert {"aqueduct", "streams"} <= {peer.name for peer in PEERS if peer.missing is None}
