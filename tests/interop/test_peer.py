"""Another QUIC and another encoder against our server: every feature of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

import aqueduct
from tests.interop.frames import (
    ACK_VERSION,
    CANCEL_SENDER,
    CLOSE_RECEIVER,
    FORGET_CHANNEL,
    VERSION_TEXT,
    Reader,
    ack_nack_unreliable,
    ack_reliable,
    connection_headers,
    dequeued,
    finish_sender,
    limits,
    message,
    read_pairs,
    route_to,
    sent_unreliable,
    version,
)
from tests.interop.peer import ENTRYPOINT, TIMEOUT, Peer, peer_of
from tests.processes.peers import eventually, receive_until_error

Server = aqueduct.Server[bytes]

CLIENT_SENDS = 1 << 3
"""client#1>: the second of the entrypoint's space."""
SERVER_SENDS = 0b010
"""client#0<"""
SERVER_ANSWERS = 0b110
"""client!0<"""


@asynccontextmanager
async def meeting(
    server: Server, *headers: tuple[bytes, bytes]
) -> AsyncIterator[tuple[Peer, aqueduct.Connection[bytes]]]:
    """Connect a peer, and return it with the connection at our side."""
    async with peer_of(server.address) as peer:
        peer.greet(*headers)
        connection = await server.accept()
        assert connection is not None
        await peer.frame("CONNECTION_HEADERS")
        peer.open(ACK_VERSION)
        yield peer, connection
        connection.entrypoint.close()


async def test_the_handshake_exchanges_limits(server: Server) -> None:
    async with meeting(server, (b"lang", b"other")) as (peer, connection):
        assert list(connection.headers) == [(b"lang", b"other")]
        assert (await peer.frame("VERSION")).text == VERSION_TEXT
        await peer.frame("ACK_VERSION")
        (stated,) = (await peer.frame("CONNECTION_HEADERS")).headers
        assert stated[0] == b"aqueduct-limits"
        values = {name: Reader(value).varint() for name, value in read_pairs(stated[1])}
        assert values[b"channel-window"] == 8 << 20
        assert values[b"max-message"] == 1 << 24
        (first,) = peer.about(None)
        assert [frame.name for frame in first.frames] == [
            "VERSION",
            "ACK_VERSION",
            "CONNECTION_HEADERS",
        ]
        assert first.fin


async def test_messages_sent_before_the_handshake_ends_are_kept(server: Server) -> None:
    async with peer_of(server.address) as peer:
        peer.on(ENTRYPOINT, message(0, b"early"), finish_sender(1))
        peer.greet()
        connection = await server.accept()
        assert connection is not None
        assert [payload async for payload in connection.entrypoint] == [b"early"]


async def test_ordered_messages_are_acked_reported_and_closed(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        stream = peer.on(ENTRYPOINT, message(0, b"one"), message(1, b"two"), fin=False)
        acked = await peer.frame("ACK_RELIABLE", ENTRYPOINT)
        assert acked.numbers == (0, 2)
        assert await connection.entrypoint.receive() == b"one"
        assert await connection.entrypoint.receive() == b"two"
        assert (await peer.frame("DEQUEUED", ENTRYPOINT)).number == 6
        peer.write(stream, finish_sender(2), fin=True)
        await peer.frame("CLOSE_RECEIVER", ENTRYPOINT)
        (control,) = peer.about(ENTRYPOINT)
        await peer.until(lambda: control.fin, "the control stream ends")
        with pytest.raises(aqueduct.EndOfChannel):
            await connection.entrypoint.receive()


async def test_frames_can_arrive_byte_by_byte(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        whole = version() + route_to(ENTRYPOINT) + message(0, b"slow", [(b"k", b"v")])
        stream = peer.open(whole[:1], fin=False)
        for at in range(1, len(whole)):
            peer.write(stream, whole[at : at + 1])
            await asyncio.sleep(0)
        got = await connection.entrypoint.receive_message()
        assert (got.payload, list(got.headers)) == (b"slow", [(b"k", b"v")])


async def test_each_unordered_message_has_its_own_stream(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        for number in (2, 0, 1):
            peer.on(ENTRYPOINT, message(number, b"%d" % number))
            await asyncio.sleep(0.01)
        got = [await connection.entrypoint.receive_message() for _ in range(3)]
        assert sorted((each.number, each.payload) for each in got) == [
            (0, b"0"),
            (1, b"1"),
            (2, b"2"),
        ]
        peer.on(ENTRYPOINT, finish_sender(3))
        await peer.frame("CLOSE_RECEIVER", ENTRYPOINT)


async def test_datagrams_are_acked_and_missing_ones_nacked_after_the_deadline(
    server: Server,
) -> None:
    async with meeting(server) as (peer, connection):
        for number in (0, 2):
            peer.datagram(version() + route_to(ENTRYPOINT) + message(number, b"%d" % number))
        received = {await connection.entrypoint.receive(), await connection.entrypoint.receive()}
        assert received == {b"0", b"2"}
        before = asyncio.get_running_loop().time()
        control = peer.on(ENTRYPOINT, sent_unreliable(3), fin=False)

        def decided() -> bool:
            answers = peer.frames("ACK_NACK_UNRELIABLE", ENTRYPOINT)
            return sum(sum(frame.numbers) for frame in answers) == 3

        await peer.until(decided, "all three are decided")
        assert asyncio.get_running_loop().time() - before >= 0.045
        fates: list[bool] = []
        for frame in peer.frames("ACK_NACK_UNRELIABLE", ENTRYPOINT):
            for position, length in enumerate(frame.numbers):
                fates += [position % 2 == 0] * length
        assert fates == [True, False, True]
        # A late datagram is ignored after its nack.
        peer.datagram(version() + route_to(ENTRYPOINT) + message(1, b"late"))
        peer.write(control, finish_sender(0), fin=True)
        await peer.frame("CLOSE_RECEIVER", ENTRYPOINT)
        with pytest.raises(aqueduct.EndOfChannel):
            await connection.entrypoint.receive()


async def test_several_messages_share_a_datagram(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        peer.datagram(
            version() + route_to(ENTRYPOINT) + message(0, b"a") + message(1, b"b") + message(2)
        )
        assert [await connection.entrypoint.receive() for _ in range(3)] == [b"a", b"b", b""]


async def attach(
    peer: Peer, connection: aqueduct.Connection[bytes], channel: int, headers: bytes = b""
) -> aqueduct.Sender[bytes] | aqueduct.Receiver[bytes]:
    """Attach a half of a channel of the peer."""
    of_channel = [(b"h", headers)] if headers else []
    peer.on(ENTRYPOINT, message(0, b"take this", attach=[(channel, of_channel)]), fin=False)
    got = await connection.entrypoint.receive_message()
    (half,) = got.attachments
    assert isinstance(half, aqueduct.Sender | aqueduct.Receiver)
    return half


async def test_the_mode_of_a_channel_is_a_header_of_it(server: Server) -> None:
    """AQ-MODE-1: unknown values are ignored, and the application sees none."""
    async with meeting(server) as (peer, connection):
        hints = [(b"aqueduct-mode", hint) for hint in (b"ordered", b"unreliable", b"sometimes")]
        peer.on(
            ENTRYPOINT,
            message(0, b"", attach=[(SERVER_SENDS, [*hints, (b"h", b"x")])]),
            fin=False,
        )
        (half,) = (await connection.entrypoint.receive_message()).attachments
        assert isinstance(half, aqueduct.Sender)
        assert half.mode is aqueduct.Mode.UNRELIABLE
        assert list(half.headers) == [(b"h", b"x")]
        ends = [aqueduct.channel(mode=mode, headers={"h": "y"}) for mode in aqueduct.Mode]
        await half.send(b"datagram", attach=[sender for sender, _ in ends])
        await peer.until(lambda: peer.datagrams, "the datagram")
        (carrier,) = [one for one in peer.datagrams[0].frames if one.name == "MESSAGE"]
        assert carrier.text == b"datagram"
        assert [dict(headers) for _, headers in carrier.attachments] == [
            {b"h": b"y"},
            {b"h": b"y", b"aqueduct-mode": b"unordered"},
            {b"h": b"y", b"aqueduct-mode": b"unreliable"},
        ]
        assert (await peer.frame("SENT_UNRELIABLE", SERVER_SENDS)).number == 1
        half.cancel()
        for _, receiver in ends:
            receiver.close()


async def test_the_server_sends_on_a_channel_of_the_peer_and_finishes(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        half = await attach(peer, connection, SERVER_SENDS, b"on the channel")
        assert isinstance(half, aqueduct.Sender)
        assert list(half.headers) == [(b"h", b"on the channel")]
        await half.send(b"first", headers={"k": "v"})
        await half.send(b"second")
        half.finish()
        finish = await peer.frame("FINISH_SENDER", SERVER_SENDS)
        assert finish.number == 2
        first, second = peer.frames("MESSAGE", SERVER_SENDS)
        assert (first.number, first.text, first.headers) == (0, b"first", [(b"k", b"v")])
        assert (second.number, second.text) == (1, b"second")
        (stream,) = peer.about(SERVER_SENDS)
        assert stream.fin
        peer.on(SERVER_SENDS, ack_reliable(0, 2), dequeued(13), CLOSE_RECEIVER)
        await half.flush()


async def test_the_reply_on_a_oneshot_finishes_the_channel(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        half = await attach(peer, connection, SERVER_ANSWERS)
        assert isinstance(half, aqueduct.Sender)
        receipt = await half.send(b"the answer", receipt=True)
        await peer.frame("FINISH_SENDER", SERVER_ANSWERS)
        (stream,) = [s for s in peer.about(SERVER_ANSWERS) if s.frames[-1].name == "FINISH_SENDER"]
        assert [frame.name for frame in stream.frames[-3:]] == [
            "ROUTE_TO",
            "MESSAGE",
            "FINISH_SENDER",
        ]
        peer.on(SERVER_ANSWERS, ack_reliable(0, 1), CLOSE_RECEIVER)
        assert receipt is not None
        assert await receipt is aqueduct.DELIVERED


async def test_a_close_nacks_unacked_messages(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        half = await attach(peer, connection, SERVER_SENDS)
        assert isinstance(half, aqueduct.Sender)
        receipts = [await half.send(b"%d" % number, receipt=True) for number in range(3)]
        await peer.until(lambda: len(peer.frames("MESSAGE", SERVER_SENDS)) == 3, "messages")
        peer.on(SERVER_SENDS, ack_reliable(0, 1, 1, 1), CLOSE_RECEIVER)
        outcomes = [await receipt for receipt in receipts if receipt is not None]
        assert outcomes == [aqueduct.DELIVERED, aqueduct.LOST, aqueduct.DELIVERED]
        with pytest.raises(aqueduct.ReceiverClosed):
            await half.send(b"more")


async def test_the_server_cancels_with_a_frame_and_a_reset(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        half = await attach(peer, connection, SERVER_SENDS)
        assert isinstance(half, aqueduct.Sender)
        await half.send(b"never mind")
        await peer.frame("MESSAGE", SERVER_SENDS)
        half.cancel()
        await peer.frame("CANCEL_SENDER", SERVER_SENDS)
        await peer.until(
            lambda: [stream.reset for stream in peer.about(SERVER_SENDS) if stream.reset] == [0x10],
            "the message stream is reset",
        )
        peer.on(SERVER_SENDS, CLOSE_RECEIVER)


async def test_a_cancel_of_the_peer_reaches_the_application(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        half = await attach(peer, connection, CLIENT_SENDS)
        assert isinstance(half, aqueduct.Receiver)
        stream = peer.on(CLIENT_SENDS, message(0, b"taken"), message(1, b"dropped"), fin=False)
        assert await half.receive() == b"taken"
        peer.on(CLIENT_SENDS, CANCEL_SENDER)
        peer.reset(stream)
        await peer.frame("CLOSE_RECEIVER", CLIENT_SENDS)
        with pytest.raises(aqueduct.ChannelCancelled):
            await receive_until_error(half)


async def test_the_server_closes_a_receiver(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        half = await attach(peer, connection, CLIENT_SENDS)
        assert isinstance(half, aqueduct.Receiver)
        stream = peer.on(CLIENT_SENDS, message(0, b"x"), fin=False)
        assert await half.receive() == b"x"
        half.close()
        await peer.frame("CLOSE_RECEIVER", CLIENT_SENDS)
        assert (await peer.frame("ACK_RELIABLE", CLIENT_SENDS)).numbers == (0, 1)
        # Late messages are ignored, not a violation.
        peer.write(stream, message(1, b"late"))
        await asyncio.sleep(0.1)
        assert peer.closed is None


async def test_a_channel_can_be_used_before_its_carrier_arrives(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        peer.on(CLIENT_SENDS, message(0, b"before the carrier"), finish_sender(1))
        # The server answers for a channel that it does not know yet.
        await peer.frame("ROUTE_TO", CLIENT_SENDS)
        half = await attach(peer, connection, CLIENT_SENDS)
        assert isinstance(half, aqueduct.Receiver)
        assert [payload async for payload in half] == [b"before the carrier"]


async def test_a_channel_that_the_peer_forgets_ends_at_the_server(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        peer.on(CLIENT_SENDS, message(0, b"x" * 1_000), fin=False)
        await peer.frame("ROUTE_TO", CLIENT_SENDS)
        assert connection.statistics()["channels"] == 2
        peer.on(CLIENT_SENDS, FORGET_CHANNEL)
        await eventually(lambda: connection.statistics()["channels"] == 1, "it is forgotten")
        assert connection.statistics()["held_bytes"] == 0


async def test_an_unknown_channel_of_the_server_is_forgotten(server: Server) -> None:
    async with meeting(server) as (peer, _):
        server_made = 1 | 5 << 3
        peer.on(server_made, ack_reliable(0, 1))
        await peer.frame("FORGET_CHANNEL", server_made)
        assert peer.closed is None


class Gift(msgspec.Struct):
    """A message of the server with both kinds of halves."""

    here: aqueduct.Receiver[bytes]
    there: aqueduct.Sender[bytes]


class Wish(msgspec.Struct):
    """A request for a gift."""

    reply: aqueduct.Sender[Gift]


async def test_the_server_creates_channels_and_forgets_a_lost_one() -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", Wish, tls=aqueduct.dev_tls()) as server,
        peer_of(server.address) as peer,
    ):
        peer.greet()
        peer.on(
            ENTRYPOINT,
            message(0, msgspec.msgpack.encode({"reply": 0}), attach=[(SERVER_SENDS, [])]),
            fin=False,
        )
        connection = await server.accept()
        assert connection is not None
        wish = await connection.entrypoint.receive()
        to_peer, of_peer = aqueduct.channel()
        from_peer_in, from_peer = aqueduct.channel()
        await wish.reply.send(Gift(of_peer, from_peer_in))
        gift = await peer.frame("MESSAGE", SERVER_SENDS)
        (server_sends, _), (peer_sends, _) = gift.attachments
        assert (server_sends & 0b111, peer_sends & 0b111) == (0b011, 0b001)
        await to_peer.send(b"early")
        assert (await peer.frame("MESSAGE", server_sends)).text == b"early"
        # The peer uses the second of them, then nacks the message that carried both.
        peer.on(peer_sends, message(0, b"from us"), fin=False)
        await asyncio.sleep(0.1)
        peer.on(SERVER_SENDS, CLOSE_RECEIVER)
        await peer.frame("FORGET_CHANNEL", server_sends)
        await peer.frame("FORGET_CHANNEL", peer_sends)
        with pytest.raises(aqueduct.ChannelLostInTransit):
            await to_peer.flush()
        with pytest.raises(aqueduct.ChannelLostInTransit):
            await from_peer.receive()
        connection.entrypoint.close()
        assert peer.closed is None


async def test_the_peer_sends_on_a_channel_of_the_server() -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", Wish, tls=aqueduct.dev_tls()) as server,
        peer_of(server.address) as peer,
    ):
        peer.greet()
        peer.on(
            ENTRYPOINT,
            message(0, msgspec.msgpack.encode({"reply": 0}), attach=[(SERVER_SENDS, [])]),
            fin=False,
        )
        connection = await server.accept()
        assert connection is not None
        wish = await connection.entrypoint.receive()
        to_peer, of_peer = aqueduct.channel()
        from_peer_in, from_peer = aqueduct.channel()
        await wish.reply.send(Gift(of_peer, from_peer_in))
        gift = await peer.frame("MESSAGE", SERVER_SENDS)
        (server_sends, _), (peer_sends, _) = gift.attachments
        peer.on(SERVER_SENDS, ack_reliable(0, 1), dequeued(10), fin=False)
        peer.on(peer_sends, message(0, b"from us"), finish_sender(1))
        assert [payload async for payload in from_peer] == [b"from us"]
        await peer.frame("CLOSE_RECEIVER", peer_sends)
        async with to_peer:
            await to_peer.send(b"from them")
        assert (await peer.frame("FINISH_SENDER", server_sends)).number == 1
        peer.on(server_sends, ack_reliable(0, 1), CLOSE_RECEIVER)
        wish.reply.cancel()
        connection.entrypoint.close()


async def test_the_server_stays_within_the_window_of_the_peer(server: Server) -> None:
    headers = limits(channel_window=1_000, connection_window=10_000, max_message=600)
    async with meeting(server, headers) as (peer, connection):
        half = await attach(peer, connection, SERVER_SENDS)
        assert isinstance(half, aqueduct.Sender)
        with pytest.raises(aqueduct.MessageTooLarge):
            await half.send(bytes(601))
        await half.send(bytes(600))
        sending = asyncio.create_task(half.send(bytes(500)))
        await peer.frame("MESSAGE", SERVER_SENDS)
        await asyncio.sleep(0.1)
        assert len(peer.frames("MESSAGE", SERVER_SENDS)) == 1
        control = peer.on(SERVER_SENDS, ack_reliable(0, 1), dequeued(600), fin=False)
        await sending
        await peer.until(lambda: len(peer.frames("MESSAGE", SERVER_SENDS)) == 2, "the second")
        half.finish()
        peer.write(control, ack_reliable(1, 1) + dequeued(500) + CLOSE_RECEIVER, fin=True)


async def test_unreliable_messages_of_the_server_are_announced(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        half = await attach(peer, connection, SERVER_SENDS)
        assert isinstance(half, aqueduct.Sender)
        connection._driver.core.set_mode(SERVER_SENDS, aqueduct.Mode.UNRELIABLE)
        receipts = [await half.send(b"%d" % number, receipt=True) for number in range(3)]
        await peer.until(
            lambda: sum(f.number for f in peer.frames("SENT_UNRELIABLE", SERVER_SENDS)) == 3,
            "three are announced",
        )
        texts = [f.text for d in peer.datagrams for f in d.frames if f.name == "MESSAGE"]
        assert sorted(texts) == [b"0", b"1", b"2"]
        control = peer.on(SERVER_SENDS, ack_nack_unreliable(1, 1), fin=False)
        peer.write(control, ack_nack_unreliable(1))
        outcomes = [await receipt for receipt in receipts if receipt is not None]
        assert outcomes == [aqueduct.DELIVERED, aqueduct.LOST, aqueduct.DELIVERED]
        half.finish()
        assert (await peer.frame("FINISH_SENDER", SERVER_SENDS)).number == 0
        peer.write(control, CLOSE_RECEIVER, fin=True)


async def test_stop_sending_is_answered_with_a_reset_and_nothing_else_happens(
    server: Server,
) -> None:
    async with meeting(server) as (peer, connection):
        half = await attach(peer, connection, SERVER_SENDS)
        assert isinstance(half, aqueduct.Sender)
        await half.send(b"one")
        await peer.frame("MESSAGE", SERVER_SENDS)
        (stream,) = [number for number, s in peer.streams.items() if s.channel == SERVER_SENDS]
        peer._quic.stop_stream(stream, 0x10)
        peer.transmit()
        await peer.until(lambda: peer.streams[stream].reset is not None, "a reset")
        await half.send(b"discarded")
        await asyncio.sleep(0.1)
        assert peer.closed is None
        peer.on(SERVER_SENDS, ack_reliable(0, 1), CLOSE_RECEIVER)
        with pytest.raises(aqueduct.ReceiverClosed):
            await half.flush()


async def test_the_server_can_refuse_the_peer(server: Server) -> None:
    def refuse(headers: aqueduct.Headers, peer: object) -> aqueduct.Accept:
        raise aqueduct.Refuse("not today")

    async with (
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), accept=refuse) as other,
        peer_of(other.address) as peer,
    ):
        peer.open(version() + connection_headers())
        assert await peer.closing() == (0x06, "not today")


async def test_a_close_by_the_peer_is_reported_with_its_code(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        waiting = asyncio.create_task(connection.entrypoint.receive())
        await asyncio.sleep(0)
        peer._quic.close(error_code=0x08, reason_phrase="going")
        peer.transmit()
        with pytest.raises(aqueduct.ConnectionLost) as caught:
            await waiting
        assert (caught.value.code, caught.value.by_peer) == (aqueduct.CloseCode.GOING_AWAY, True)


async def test_a_large_message_arrives_intact(server: Server) -> None:
    async with meeting(server) as (peer, connection):
        payload = bytes(range(256)) * 4_000
        peer.on(ENTRYPOINT, message(0, payload), finish_sender(1))
        assert await connection.entrypoint.receive() == payload
        await peer.frame("CLOSE_RECEIVER", ENTRYPOINT)
