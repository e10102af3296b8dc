"""Breaking a rule closes the connection with the right code, and the reason names the rule."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import aqueduct
from aqueduct.protocol.config import Config
from tests.interop.frames import (
    ACK_VERSION,
    CANCEL_SENDER,
    CLOSE_RECEIVER,
    FORGET_CHANNEL,
    MAGIC,
    ack_nack_unreliable,
    ack_reliable,
    connection_headers,
    dequeued,
    finish_sender,
    message,
    route_to,
    sent_unreliable,
    varbytes,
    varint,
    version,
)
from tests.interop.peer import ENTRYPOINT, TIMEOUT, Peer, peer_of

PROTOCOL_VIOLATION, VERSION_MISMATCH, FLOW_CONTROL, LIMIT_EXCEEDED = 2, 3, 4, 5

CLIENT_SENDS = 1 << 3
SERVER_SENDS = 0b010
ONESHOT = 0b100
"""client!0>"""
SERVER_MADE = 0b001

Act = Callable[[Peer], object]


@dataclass(frozen=True)
class Crime:
    """What a peer sends, and the rule that this breaks."""

    rule: str
    act: Act
    code: int = PROTOCOL_VIOLATION
    greeted: bool = True
    reply: bool = False
    """Whether the server first sends a message on client#0<."""


def on_entrypoint(*frames: bytes, fin: bool = False) -> Act:
    return lambda peer: peer.on(ENTRYPOINT, *frames, fin=fin)


def raw(data: bytes, *, fin: bool = False) -> Act:
    return lambda peer: peer.open(data, fin=fin)


def datagram(data: bytes) -> Act:
    return lambda peer: peer.datagram(data)


def twice(first: Act, second: Act) -> Act:
    def act(peer: Peer) -> None:
        first(peer)
        second(peer)

    return act


def bidirectional(peer: Peer) -> None:
    stream = peer._quic.get_next_available_stream_id()
    peer.write(stream, version() + route_to(ENTRYPOINT))


ROUTE = version() + route_to(ENTRYPOINT)
HUGE = varint(1 << 40)

CRIMES = {
    # The start
    "no version at all": Crime("AQ-VERSION-3", raw(route_to(ENTRYPOINT)), greeted=False),
    "headers before the version": Crime("AQ-VERSION-3", raw(connection_headers()), greeted=False),
    "another version": Crime(
        "AQ-VERSION-4", raw(version(b"9.9")), code=VERSION_MISMATCH, greeted=False
    ),
    "http": Crime("AQ-FRAME-2", raw(b"GET / HTTP/1.1\r\n\r\n"), greeted=False),
    "the magic is wrong in its second byte": Crime("AQ-FRAME-3", raw(b"\xef\x51"), greeted=False),
    "the magic is wrong in its last byte": Crime(
        "AQ-FRAME-3", raw(MAGIC[:-1] + b"X"), greeted=False
    ),
    "an endless version text": Crime(
        "AQ-SEQ-9", raw(MAGIC + varint(65)), code=LIMIT_EXCEEDED, greeted=False
    ),
    "headers twice": Crime("AQ-CONN-4", raw(version() + connection_headers())),
    "a limit that is no number": Crime(
        "AQ-LIMIT-1",
        raw(version() + connection_headers([(b"aqueduct-limits", b"\x0bmax-message\x01\x80")])),
        greeted=False,
    ),
    # Encoding
    "an overlong number": Crime("AQ-VARINT-2", raw(version() + b"\x03\x80\x00")),
    "a number of 65 bits": Crime("AQ-VARINT-3", raw(version() + b"\x03" + b"\xff" * 9 + b"\x02")),
    "an odd header": Crime(
        "AQ-HEADER-2", on_entrypoint(b"\x04\x00" + varbytes(b"\x01k") + b"\x00\x00")
    ),
    "a header that runs out of its data": Crime(
        "AQ-BYTES-2", on_entrypoint(b"\x04\x00" + varbytes(b"\x09k\x01v") + b"\x00\x00")
    ),
    "an unknown frame": Crime("AQ-FRAME-2", on_entrypoint(b"\x0d")),
    "a frame of zero": Crime("AQ-FRAME-2", on_entrypoint(b"\x00")),
    # Sequences
    "version after the route": Crime("AQ-SEQ-1", on_entrypoint(version())),
    "ack of the version after the route": Crime("AQ-SEQ-1", on_entrypoint(ACK_VERSION)),
    "two routes": Crime("AQ-SEQ-2", on_entrypoint(route_to(ENTRYPOINT))),
    "a message without a route": Crime("AQ-SEQ-3", raw(version() + message(0, b"x"))),
    "the end inside a frame": Crime("AQ-SEQ-4", raw(ROUTE + message(0, b"xyz")[:-1], fin=True)),
    "the end inside the version": Crime("AQ-SEQ-4", raw(version()[:7], fin=True)),
    "an empty stream": Crime("AQ-SEQ-5", raw(b"", fin=True)),
    "an empty datagram": Crime("AQ-SEQ-5", datagram(b"")),
    "a datagram that ends inside a frame": Crime(
        "AQ-SEQ-4", datagram(ROUTE + message(0, b"xyz")[:-1])
    ),
    # Limits
    "a huge payload": Crime(
        "AQ-SEQ-6", on_entrypoint(b"\x04\x00\x00\x00" + HUGE), code=LIMIT_EXCEEDED
    ),
    "huge headers": Crime(
        "AQ-SEQ-7", on_entrypoint(b"\x04\x00" + varint(65_537)), code=LIMIT_EXCEEDED
    ),
    "huge attachments": Crime(
        "AQ-SEQ-6", on_entrypoint(b"\x04\x00\x00" + HUGE), code=LIMIT_EXCEEDED
    ),
    "too many attachments": Crime(
        "AQ-SEQ-8",
        on_entrypoint(message(0, attach=[(CLIENT_SENDS + 8 * n, []) for n in range(257)])),
        code=LIMIT_EXCEEDED,
    ),
    "a huge range": Crime(
        "AQ-RANGE-5", on_entrypoint(b"\x08" + varint(81_921)), code=LIMIT_EXCEEDED
    ),
    # Sides
    "an ack from the sender": Crime("AQ-FRAME-19", on_entrypoint(ack_reliable(0, 1))),
    "credit from the sender": Crime("AQ-FRAME-19", on_entrypoint(dequeued(1))),
    "a close from the sender": Crime("AQ-FRAME-19", on_entrypoint(CLOSE_RECEIVER)),
    "a message from the receiver": Crime(
        "AQ-FRAME-18", lambda peer: peer.on(SERVER_SENDS, message(0, b"x"), fin=False), reply=True
    ),
    "a finish from the receiver": Crime(
        "AQ-FRAME-18", lambda peer: peer.on(SERVER_SENDS, finish_sender(0)), reply=True
    ),
    "the entrypoint forgotten": Crime("AQ-FRAME-20", on_entrypoint(FORGET_CHANNEL)),
    # Attachments
    "the entrypoint attached": Crime("AQ-FRAME-9", on_entrypoint(message(0, attach=[(0, [])]))),
    "a channel attached twice in a message": Crime(
        "AQ-FRAME-9", on_entrypoint(message(0, attach=[(CLIENT_SENDS, [])] * 2))
    ),
    "a channel attached in two messages": Crime(
        "AQ-SEND-7",
        on_entrypoint(
            message(0, attach=[(CLIENT_SENDS, [])]), message(1, attach=[(CLIENT_SENDS, [])])
        ),
    ),
    "a channel of the other side attached": Crime(
        "AQ-FRAME-21", on_entrypoint(message(0, attach=[(SERVER_MADE, [])]))
    ),
    # Numbers and ends
    "a number twice in streams": Crime(
        "AQ-SEND-2", twice(on_entrypoint(message(0, b"a")), on_entrypoint(message(0, b"b")))
    ),
    "a number twice in one stream": Crime(
        "AQ-SEND-2", on_entrypoint(message(0, b"a"), message(0, b"b"))
    ),
    "a number twice in a datagram": Crime(
        "AQ-SEND-2", datagram(ROUTE + message(0, b"a") + message(0, b"b"))
    ),
    "two messages on a oneshot": Crime(
        "AQ-SEND-6",
        lambda peer: peer.on(ONESHOT, message(0, b"a"), message(1, b"b"), fin=False),
    ),
    "a second finish": Crime("AQ-FINISH-3", on_entrypoint(finish_sender(1), finish_sender(1))),
    "an announcement after the finish": Crime(
        "AQ-FINISH-3", on_entrypoint(finish_sender(1), sent_unreliable(1))
    ),
    "a message the finish does not count": Crime(
        "AQ-FINISH-4", twice(on_entrypoint(message(5, b"x")), on_entrypoint(finish_sender(1)))
    ),
    "a message behind the finish": Crime(
        "AQ-FINISH-4", twice(on_entrypoint(finish_sender(1)), on_entrypoint(message(5, b"x")))
    ),
    "a cancel after the finish": Crime(
        "AQ-CANCEL-3", twice(on_entrypoint(finish_sender(1)), on_entrypoint(CANCEL_SENDER))
    ),
    "two control streams of a sender": Crime(
        "AQ-STREAM-4",
        twice(on_entrypoint(sent_unreliable(1)), on_entrypoint(sent_unreliable(1))),
    ),
    "a bidirectional stream": Crime("AQ-STREAM-6", bidirectional),
    "an announcement in a datagram": Crime("AQ-UNREL-7", datagram(ROUTE + sent_unreliable(1))),
    "headers in a datagram": Crime("AQ-UNREL-7", datagram(version() + connection_headers())),
    # Answers to one message of the server, 5 bytes on client#0<
    "an ack for what was not sent": Crime(
        "AQ-ACK-2", lambda peer: peer.on(SERVER_SENDS, ack_reliable(0, 2), fin=False), reply=True
    ),
    "an empty ack": Crime(
        "AQ-RANGE-1", lambda peer: peer.on(SERVER_SENDS, ack_reliable(), fin=False), reply=True
    ),
    "an ack of nothing": Crime(
        "AQ-RANGE-2", lambda peer: peer.on(SERVER_SENDS, ack_reliable(0, 0), fin=False), reply=True
    ),
    "an ack past the last number": Crime(
        "AQ-RANGE-4",
        lambda peer: peer.on(SERVER_SENDS, ack_reliable(1, 2**64 - 1, 1, 1), fin=False),
        reply=True,
    ),
    "a decision on what was not announced": Crime(
        "AQ-UNREL-5",
        lambda peer: peer.on(SERVER_SENDS, ack_nack_unreliable(1), fin=False),
        reply=True,
    ),
    "credit for more than was sent": Crime(
        "AQ-FLOW-5",
        lambda peer: peer.on(SERVER_SENDS, dequeued(6), fin=False),
        code=FLOW_CONTROL,
        reply=True,
    ),
    "two control streams of a receiver": Crime(
        "AQ-STREAM-5",
        twice(
            lambda peer: peer.on(SERVER_SENDS, ack_reliable(0, 1), fin=False),
            lambda peer: peer.on(SERVER_SENDS, dequeued(5), fin=False),
        ),
        reply=True,
    ),
    # Flow control
    "more than the channel's window": Crime(
        "AQ-FLOW-2",
        lambda peer: peer.on(
            ENTRYPOINT, *(message(n, bytes(100_000)) for n in range(84)), fin=False
        ),
        code=FLOW_CONTROL,
    ),
}


async def commit(crime: Crime, server: aqueduct.Server[bytes], peer: Peer) -> object:
    """Break the rule; return what must be kept alive until the server notices."""
    half: Any = None
    if not crime.greeted:
        crime.act(peer)
        return half
    peer.greet()
    connection = await server.accept()
    assert connection is not None
    await peer.frame("CONNECTION_HEADERS")
    peer.open(ACK_VERSION)
    if crime.reply:
        first = peer.on(ENTRYPOINT, message(0, attach=[(SERVER_SENDS, [])]), fin=False)
        assert first >= 0
        got = await connection.entrypoint.receive_message()
        (half,) = got.attachments
        await half.send(b"reply")
        await peer.frame("MESSAGE", SERVER_SENDS)
    crime.act(peer)
    return half


@pytest.mark.parametrize("crime", CRIMES.values(), ids=[name.replace(" ", "-") for name in CRIMES])
async def test_a_violation_closes_and_names_the_rule(
    crime: Crime, server: aqueduct.Server[bytes]
) -> None:
    async with peer_of(server.address) as peer:
        kept = await commit(crime, server, peer)
        code, reason = await peer.closing()
        assert (code, reason.partition(":")[0]) == (crime.code, crime.rule), reason
        assert len(reason) > len(crime.rule) + 5
        del kept


async def test_data_before_the_headers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(*_: object) -> Config:
        return Config(max_early_bytes=1_000_000)

    # Not by its dotted name: `aqueduct.channel` is the function, too.
    monkeypatch.setattr(importlib.import_module("aqueduct.api.server"), "config_of", small)
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as server,
        peer_of(server.address) as peer,
    ):
        for number in range(30):
            peer.on(CLIENT_SENDS + 8 * number, message(0, bytes(60_000)), fin=False)
        code, reason = await peer.closing()
        assert (code, reason.partition(":")[0]) == (LIMIT_EXCEEDED, "AQ-CONN-3")


async def test_a_peer_without_datagrams_is_rejected(server: aqueduct.Server[bytes]) -> None:
    async with peer_of(server.address, datagrams=None) as peer:
        peer.greet()
        code, reason = await peer.closing()
        assert code == PROTOCOL_VIOLATION
        assert "datagram" in reason


async def test_the_server_serves_others_after_all_violations(
    server: aqueduct.Server[bytes],
) -> None:
    async with peer_of(server.address) as bad:
        bad.open(b"nonsense")
        await bad.closing()
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.connect(server.address, trust=aqueduct.dev_trust()) as good,
    ):
        await good.entrypoint.send(b"hello")
        connection = await server.accept()
        assert connection is not None
        assert await connection.entrypoint.receive() == b"hello"


@pytest.mark.parametrize("frames", [(), (b"\x04",), (message(0, b"x")[:-1],)])
async def test_an_incomplete_frame_before_a_reset_is_no_violation(
    server: aqueduct.Server[bytes], frames: tuple[bytes, ...]
) -> None:
    async with peer_of(server.address) as peer:
        peer.greet()
        connection = await server.accept()
        assert connection is not None
        stream = peer.on(ENTRYPOINT, *frames, fin=False)
        await asyncio.sleep(0.05)
        peer.reset(stream)
        await asyncio.sleep(0.1)
        assert peer.closed is None
        peer.on(ENTRYPOINT, message(0, b"fine"), fin=False)
        assert await connection.entrypoint.receive() == b"fine"
        connection.entrypoint.close()
