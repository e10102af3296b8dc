"""Incoming streams and datagrams: any chunks and order, resets, and waiting for the headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.errors import CloseCode
from aqueduct.protocol.config import Config
from aqueduct.protocol.events import PeerHeaders, Readable
from aqueduct.protocol.incoming import COST_OF_WAITING, Incoming
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    AckReliable,
    AckVersion,
    ConnectionHeaders,
    FinishSender,
    RouteTo,
    SentUnreliable,
    Version,
)
from tests.protocol.wires import (
    GENEROUS,
    RawPeer,
    carrier,
    encode,
    from_client,
    payloads,
    plain,
    server_core,
)

HELLO = (Version(), ConnectionHeaders(()))


def waiting_server(config: Config | None = None) -> RawPeer:
    """Return a server that has the client's headers and has not accepted."""
    peer = RawPeer(Side.SERVER, config, greet=False)
    peer.stream(*HELLO, fin=True)
    return peer


def test_a_datagram_differs_from_a_stream() -> None:
    assert Incoming(-1, GENEROUS).is_datagram
    assert not Incoming(0, GENEROUS).is_datagram


def test_a_waiting_sequence_counts_its_bytes_and_itself() -> None:
    """AQ-CONN-3: otherwise empty streams would cost nothing."""
    incoming = Incoming(0, GENEROUS)
    incoming.feed(b"\x03\x00")
    assert incoming.parser is not None
    incoming.parser.next()
    incoming.wait(0)
    incoming.feed(b"abc")
    assert incoming.holds() == 3 + COST_OF_WAITING
    incoming.resume()
    assert incoming.holds() == 3


def test_an_ignored_sequence_holds_no_bytes() -> None:
    """AQ-ROUTE-4."""
    incoming = Incoming(0, GENEROUS)
    incoming.feed(b"\x03\x00\x04")
    incoming.ignore()
    incoming.feed(b"x" * 1000)
    assert incoming.holds() == 0


@given(st.lists(st.integers(1, 30), max_size=20))
def test_a_stream_means_the_same_in_any_chunks(sizes: list[int]) -> None:
    data = encode(
        [
            RouteTo(ENTRYPOINT),
            plain(0, b"one"),
            carrier(1, from_client(1)),
            plain(2, b"three"),
            FinishSender(3),
        ]
    )
    peer = server_core()
    at = 0
    for size in sizes:
        peer.write(99, data[at : at + size])
        at += size
    peer.write(99, data[at:], fin=True)
    peer.assert_alive()
    assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"one", b"", b"three"]


@pytest.mark.parametrize("cut", [True, False])
def test_complete_frames_of_a_reset_stream_are_processed(cut: bool) -> None:
    """AQ-STREAM-7: the incomplete rest is ignored."""
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, plain(0, b"whole"))
    if cut:
        peer.write(stream, plain(1, b"x" * 100).encode()[:50])
    peer.reset(stream)
    peer.assert_alive()
    assert peer.core.leftovers() == ["entrypoint: receiver open", "5 bytes held"]
    assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"whole"]


def test_a_stream_reset_before_its_first_byte_is_ignored() -> None:
    """AQ-STREAM-7."""
    peer = server_core()
    peer.write(7, b"")
    peer.reset(7)
    peer.reset(8)
    peer.assert_alive()
    assert peer.core.leftovers() == ["entrypoint: receiver open"]


def test_a_server_holds_everything_until_its_application_accepts() -> None:
    """AQ-CONN-3: streams and datagrams, in the order of arrival."""
    peer = waiting_server()
    peer.stream(Version(), RouteTo(ENTRYPOINT), plain(0, b"one"))
    peer.datagram(Version(), RouteTo(ENTRYPOINT), plain(0, b"two"))
    stream = peer.routed(from_client(1), plain(0, b"three"))
    peer.more(stream, plain(1, b"four"), fin=True)
    assert peer.events() == [PeerHeaders(())]
    assert peer.core.take(ENTRYPOINT, 9, peer.now) == []
    assert peer.core.channel_count == 1
    peer.core.accept((), peer.now)
    assert peer.events() == [Readable(ENTRYPOINT)]
    assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"one", b"two"]
    assert peer.core.channel_count == 2
    peer.assert_alive()


def test_a_client_holds_everything_until_it_has_the_headers() -> None:
    """AQ-CONN-3."""
    peer = RawPeer(Side.CLIENT, greet=False)
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    peer.stream(Version(), RouteTo(ENTRYPOINT), AckReliable(((0, 1),)))
    assert peer.events() == []
    peer.stream(Version(), AckVersion(), ConnectionHeaders(()), fin=True)
    assert [type(event).__name__ for event in peer.events()] == ["PeerHeaders", "Delivered"]


def test_a_violation_in_held_input_closes_the_connection_once_it_is_read() -> None:
    """AQ-CODE-3: `accept` does not raise."""
    peer = waiting_server()
    peer.stream(Version(), RouteTo(ENTRYPOINT), AckReliable(((0, 1),)))
    peer.stream(Version(), RouteTo(ENTRYPOINT), plain(0, b"x"))
    peer.assert_alive()
    peer.core.accept((), peer.now)
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-FRAME-19")


def test_too_many_bytes_in_streams_before_the_headers_close_the_connection() -> None:
    """AQ-CONN-3."""
    peer = waiting_server(Config(max_early_bytes=10_000))
    stream = peer.stream(Version(), RouteTo(ENTRYPOINT))
    peer.write(stream, plain(0, b"x" * 9_000).encode())
    peer.assert_alive()
    peer.write(stream, plain(1, b"x" * 1_000).encode())
    peer.assert_closed(CloseCode.LIMIT_EXCEEDED, "AQ-CONN-3")


def test_excess_datagrams_before_the_headers_are_dropped() -> None:
    """AQ-CONN-3."""
    peer = waiting_server(Config(max_early_bytes=10_000))
    for number in range(1_000):
        peer.datagram(Version(), RouteTo(ENTRYPOINT), plain(number, b"x" * 500))
    peer.assert_alive()
    assert peer.core.held_bytes <= 10_000
    peer.core.accept((), peer.now)
    taken = payloads(peer.core.take(ENTRYPOINT, 9_999, peer.now))
    assert 1 < len(taken) < 20
    assert peer.core.leftovers() == ["entrypoint: receiver open", f"{500 * len(taken)} bytes held"]


def test_a_held_stream_that_ended_is_read_to_its_end() -> None:
    """AQ-CONN-3."""
    peer = waiting_server()
    peer.stream(Version(), RouteTo(ENTRYPOINT), plain(0), FinishSender(1), fin=True)
    assert "incoming stream 1" in peer.core.leftovers()
    peer.core.accept((), peer.now)
    assert not any("stream" in line for line in peer.core.leftovers())


def test_a_held_stream_that_is_reset_is_dropped() -> None:
    """AQ-CONN-3."""
    peer = waiting_server()
    stream = peer.stream(Version(), RouteTo(ENTRYPOINT), SentUnreliable(4))
    peer.reset(stream)
    assert peer.core.held_bytes == 0
    peer.core.accept((), peer.now)
    assert peer.core.leftovers() == ["entrypoint: receiver open"]
