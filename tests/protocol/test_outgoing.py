"""Output: how streams and datagrams are packed, reset and closed."""

import pytest

from aqueduct.errors import CloseCode, StreamCode
from aqueduct.protocol.actions import (
    CloseConnection,
    ResetStream,
    SendDatagram,
    WriteStream,
)
from aqueduct.protocol.connection import Mode
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import AckVersion, MessageFrame, RouteTo, Version
from tests.protocol.wires import Pair, client_core, decode, encode, plain, server_core


def outgoing(max_datagram: int = 1000) -> Outgoing:
    out = Outgoing(max_datagram)
    out.version_acked = True
    return out


def test_data_written_in_one_turn_is_sent_in_one_write() -> None:
    out = outgoing()
    stream = out.open(8)
    out.write(stream, b"a")
    out.write(stream, b"b")
    out.finish(stream)
    assert out.poll() == [WriteStream(0, RouteTo(8).encode() + b"ab", True)]
    assert out.poll() == []


def test_a_fin_may_be_sent_without_data() -> None:
    out = outgoing()
    stream = out.open(8)
    out.poll()
    out.finish(stream)
    assert out.poll() == [WriteStream(0, b"", True)]


def test_every_stream_and_datagram_of_a_channel_begins_with_its_route() -> None:
    """AQ-STREAM-1."""
    out = outgoing()
    out.open(8)
    out.add_to_datagram(16, 0, plain(0).encode())
    write, datagram = out.poll()
    assert isinstance(write, WriteStream)
    assert isinstance(datagram, SendDatagram)
    assert decode(write.data) == [RouteTo(8)]
    assert decode(datagram.data) == [RouteTo(16), plain(0)]


def test_every_sequence_begins_with_the_version_until_it_is_acked() -> None:
    """AQ-VERSION-1."""
    out = Outgoing(1000)
    out.open_greeting(ack_version=True)
    out.open(8)
    out.add_to_datagram(16, 0, plain(0).encode())
    greeting, stream, datagram = out.poll()
    assert isinstance(greeting, WriteStream)
    assert isinstance(stream, WriteStream)
    assert isinstance(datagram, SendDatagram)
    assert decode(greeting.data) == [Version(), AckVersion()]
    assert decode(stream.data) == [Version(), RouteTo(8)]
    assert decode(datagram.data) == [Version(), RouteTo(16), plain(0)]

    out.version_acked = True
    out.open_greeting(ack_version=True)
    out.open(8)
    greeting, stream = out.poll()
    assert isinstance(greeting, WriteStream)
    assert isinstance(stream, WriteStream)
    assert decode(greeting.data) == [AckVersion()]
    assert decode(stream.data) == [RouteTo(8)]


def test_streams_are_numbered_consecutively() -> None:
    out = outgoing()
    assert [out.open(8).number for _ in range(3)] == [0, 1, 2]


def test_a_reset_is_sent_first() -> None:
    """AQ-STREAM-8: a new stream must not wait for the stream that is reset."""
    out = outgoing()
    old = out.open(8)
    out.poll()
    out.write(old, b"old")
    fresh = out.open(8)
    out.reset(old, StreamCode.CANCELLED)
    assert out.poll() == [
        ResetStream(old.number, StreamCode.CANCELLED),
        WriteStream(fresh.number, RouteTo(8).encode(), False),
    ]


def test_a_stream_that_is_reset_before_it_was_sent_is_dropped() -> None:
    out = outgoing()
    stream = out.open(8)
    out.reset(stream, StreamCode.CANCELLED)
    assert out.poll() == []


def test_data_written_to_a_reset_stream_is_dropped() -> None:
    out = outgoing()
    stream = out.open(8)
    out.poll()
    out.reset(stream, StreamCode.CANCELLED)
    out.reset(stream, StreamCode.FORGOTTEN)
    out.write(stream, b"late")
    out.finish(stream)
    assert out.poll() == [ResetStream(0, StreamCode.CANCELLED)]


def test_messages_of_one_channel_share_a_datagram_while_they_fit() -> None:
    """AQ-SEND-4."""
    pair = Pair()
    pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    for _ in range(5):
        pair.client.send(ENTRYPOINT, b"x" * 400, pair.now)
    datagrams = [a.data for a in pair.client.poll_actions() if isinstance(a, SendDatagram)]
    assert [len(decode(data)) - 1 for data in datagrams] == [2, 2, 1]
    assert all(len(data) <= pair.client.config.max_datagram for data in datagrams)


def test_messages_of_two_channels_do_not_share_a_datagram() -> None:
    """AQ-STREAM-1: a datagram has one route."""
    out = outgoing()
    for number, channel in enumerate([8, 16, 8]):
        out.add_to_datagram(channel, number, plain(number).encode())
    assert [decode(a.data) for a in out.poll() if isinstance(a, SendDatagram)] == [
        [RouteTo(8), plain(0)],
        [RouteTo(16), plain(1)],
        [RouteTo(8), plain(2)],
    ]


@pytest.mark.parametrize("channel", [0, 8 * 2**30])
def test_a_datagram_never_exceeds_its_maximum_size(channel: int) -> None:
    """AQ-SEND-4: VERSION, if due, and a long channel id count."""
    for out in (Outgoing(200), outgoing(200)):
        room = 200 - len(out.prelude(channel))
        assert out.fits_datagram(channel, room)
        assert not out.fits_datagram(channel, room + 1)


def test_the_oldest_datagram_of_a_channel_is_dropped_first() -> None:
    """AQ-UNREL-6."""
    out = outgoing(max_datagram=20)
    for number, channel in enumerate([16, 8, 8, 8]):
        out.add_to_datagram(channel, number, MessageFrame(number, (), (), b"xxx").encode())
    assert out.drop_oldest_datagram(8) == (1, 3)
    assert out.drop_oldest_datagram(8) == (3, 4)
    assert out.drop_oldest_datagram(8) is None
    assert len(out.poll()) == 1


def test_all_datagrams_of_a_channel_are_dropped_together() -> None:
    out = outgoing(max_datagram=10)
    for channel in (8, 16, 8):
        out.add_to_datagram(channel, 0, plain(0).encode())
    out.drop_datagrams(8)
    assert out.poll() == [SendDatagram(encode([RouteTo(16), plain(0)]))]


def test_a_close_is_sent_last() -> None:
    """AQ-CODE-1."""
    out = outgoing()
    out.open(8)
    out.close(CloseCode.GOING_AWAY, "bye", at_once=False)
    assert out.poll() == [
        WriteStream(0, RouteTo(8).encode(), False),
        CloseConnection(CloseCode.GOING_AWAY, "bye"),
    ]
    assert out.poll() == []


def test_a_close_for_a_violation_drops_other_output() -> None:
    """AQ-CODE-3."""
    out = outgoing()
    opened = out.open(8)
    out.poll()
    out.open(8)
    out.add_to_datagram(8, 0, plain(0).encode())
    out.reset(opened, StreamCode.FORGOTTEN)
    out.close(CloseCode.PROTOCOL_VIOLATION, "AQ-SEND-2: no", at_once=True)
    assert out.poll() == [CloseConnection(CloseCode.PROTOCOL_VIOLATION, "AQ-SEND-2: no")]


def test_messages_sent_before_a_close_are_sent_first() -> None:
    """AQ-CONN-7 ends the channels, but not the output."""
    peer = client_core()
    peer.core.send(ENTRYPOINT, b"last words", peer.now)
    peer.core.close_connection(CloseCode.NO_ERROR, "bye", peer.now)
    assert plain(0, b"last words") in peer.said()
    assert peer.closed == CloseConnection(CloseCode.NO_ERROR, "bye")
    assert all(seen.reset is None for seen in peer.streams.values())


def test_acks_are_sent_before_a_close_and_no_stream_is_reset() -> None:
    """AQ-CODE-2: the end of a connection resets no stream."""
    peer = server_core()
    peer.routed(ENTRYPOINT, plain(0, b"x"))
    peer.wait(0.02)
    peer.core.close_connection(CloseCode.GOING_AWAY, "bye", peer.now)
    assert [type(action) for action in peer.poll()] == [CloseConnection]
    assert all(seen.reset is None for seen in peer.streams.values())
