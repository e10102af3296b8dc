"""Our side and a peer that knows only the reference draft: no limits, no credit, short memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration

import aqueduct
from aqueduct.errors import WouldBlock
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.events import Delivered, End, ReceiverEnded, SenderEnded, Undelivered
from aqueduct.wire.chanid import Side
from aqueduct.wire.frames import MessageFrame, MessageRun
from tests.interop.draft_only import DraftOnlyPeer
from tests.interop.frames import (
    ACK_VERSION,
    CANCEL_SENDER,
    CLOSE_RECEIVER,
    FORGET_CHANNEL,
    ack_nack_unreliable,
    ack_reliable,
    connection_headers,
    finish_sender,
    message,
    route_to,
    sent_unreliable,
    version,
)
from tests.interop.peer import ENTRYPOINT, Peer
from tests.interop.test_peer import SERVER_ANSWERS, SERVER_SENDS, Server, attach, meeting
from tests.processes.peers import receive_until_error

SIDES = pytest.mark.parametrize("ours", list(Side))


def from_creator(creator: Side, index: int = 1, *, oneshot: bool = False) -> int:
    """Return a channel on which its creator sends."""
    return index << 3 | oneshot << 2 | creator << 1 | creator


def to_creator(creator: Side, index: int = 0, *, oneshot: bool = False) -> int:
    """Return a channel on which its creator receives."""
    return index << 3 | oneshot << 2 | creator.other << 1 | creator


def payloads(taken: list[MessageFrame | MessageRun]) -> list[bytes]:
    found: list[bytes] = []
    for each in taken:
        found += each.payloads if isinstance(each, MessageRun) else [each.payload]
    return found


def receiving(ours: Side) -> tuple[DraftOnlyPeer, int]:
    """Return a peer with a channel of its own creation on which it sends; we hold the handle."""
    peer = DraftOnlyPeer(ours)
    channel = from_creator(ours.other)
    if ours == Side.SERVER:
        peer.on(ENTRYPOINT, message(0, b"take", attach=[(channel, [])]))
        assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"take"]
        return peer, channel
    carrier = given(peer, Give.SENDER)
    peer.on(carrier, message(0, b"take", attach=[(channel, [])]))
    assert payloads(peer.core.take(carrier, 9, peer.now)) == [b"take"]
    return peer, channel


def given(peer: DraftOnlyPeer, give: Give, mode: Mode = Mode.ORDERED) -> int:
    """Attach a channel of ours; the peer acks the message that carries it."""
    core = peer.core
    if core.side == Side.CLIENT:
        carrier = ENTRYPOINT
        acks = peer.on(ENTRYPOINT)
    else:
        carrier = to_creator(Side.CLIENT)
        peer.on(ENTRYPOINT, message(0, b"", attach=[(carrier, [])]))
        core.take(ENTRYPOINT, 9, peer.now)
        acks = peer.on(carrier)
    sent = core.send_message(carrier, b"", peer.now, attach=[Attach(give, mode=mode)])
    peer.poll()
    peer.write(acks, ack_reliable(sent.number, 1))
    return sent.channels[0]


# -- the beginning ---------------------------------------------------------------------------------


@SIDES
def test_every_sequence_begins_with_the_version_until_it_is_acked(ours: Side) -> None:
    """AQ-VERSION-1, AQ-VERSION-5: by the draft the ack waits for CONNECTION_HEADERS too."""
    peer = DraftOnlyPeer(ours, greet=False)
    if ours == Side.CLIENT:
        peer.core.send(ENTRYPOINT, b"early", peer.now)
        peer.open(ACK_VERSION)
        peer.core.cancel(ENTRYPOINT, peer.now)
    else:
        peer.open(b"")
        peer.open(ACK_VERSION)
        assert [stream.names for stream in peer.streams.values()] == [["VERSION", "ACK_VERSION"]]
    peer.poll()
    assert all(stream.names[0] == "VERSION" for stream in peer.streams.values())
    before = len(peer.streams)
    peer.open(connection_headers())
    if ours == Side.SERVER:
        peer.core.accept((), peer.now)
    peer.on(from_creator(ours.other), message(0, b"x"))
    peer.wait(0.1)
    later = list(peer.streams.values())[before:]
    assert later
    assert all(stream.names[0] == "ROUTE_TO" for stream in later)
    acks = [name for stream in peer.streams.values() for name in stream.names]
    assert acks.count("ACK_VERSION") == 1


def test_our_headers_come_once_and_need_none_of_the_peer() -> None:
    """AQ-LIMIT-2: a peer that states no limits gets the initial ones."""
    peer = DraftOnlyPeer(Side.CLIENT)
    (stated,) = [s for s in peer.streams.values() if "CONNECTION_HEADERS" in s.names]
    assert stated.names == ["VERSION", "CONNECTION_HEADERS"]
    peer.core.send(ENTRYPOINT, b"x" * 65_536, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(ENTRYPOINT, b"x", peer.now)
    peer.core.finish(ENTRYPOINT, peer.now)
    assert peer.heard(ENTRYPOINT, "FINISH_SENDER")[0].number == 1
    peer.on(ENTRYPOINT, ack_reliable(0, 1), CLOSE_RECEIVER, fin=True)
    assert peer.events() == [
        Delivered(ENTRYPOINT, True, ((0, 1),)),
        SenderEnded(ENTRYPOINT, End.FINISHED),
    ]
    assert peer.core.leftovers() == []


# -- messages --------------------------------------------------------------------------------------


@SIDES
def test_ordered_messages_are_received_acked_and_closed(ours: Side) -> None:
    """AQ-ACK-1, AQ-FINISH-5."""
    peer, channel = receiving(ours)
    stream = peer.on(channel, message(0, b"one"), message(1, b"two"))
    peer.wait(0.02)
    assert peer.heard(channel, "ACK_RELIABLE")[0].numbers == (0, 2)
    peer.write(stream, finish_sender(2), fin=True)
    assert peer.heard(channel, "CLOSE_RECEIVER")
    assert payloads(peer.core.take(channel, 9, peer.now)) == [b"one", b"two"]
    assert ReceiverEnded(channel, End.FINISHED) in peer.events()
    assert peer.closed is None


@SIDES
def test_unordered_messages_are_received_in_any_order(ours: Side) -> None:
    """AQ-STREAM-3."""
    peer, channel = receiving(ours)
    peer.on(channel, finish_sender(3), fin=True)
    for number in (2, 0, 1):
        peer.on(channel, message(number, b"%d" % number), fin=True)
    assert peer.heard(channel, "CLOSE_RECEIVER")
    assert sorted(payloads(peer.core.take(channel, 9, peer.now))) == [b"0", b"1", b"2"]


@SIDES
def test_datagrams_are_decided_after_their_deadline(ours: Side) -> None:
    """AQ-UNREL-2, AQ-UNREL-3."""
    peer, channel = receiving(ours)
    for number in (0, 2):
        peer.datagram(channel, message(number, b"%d" % number))
    control = peer.on(channel, sent_unreliable(3))
    peer.wait(0.2)
    peer.datagram(channel, message(1, b"late"))
    peer.write(control, finish_sender(0), fin=True)
    fates = [frame.numbers for frame in peer.heard(channel, "ACK_NACK_UNRELIABLE")]
    assert sum(map(sum, fates)) == 3
    assert payloads(peer.core.take(channel, 9, peer.now)) == [b"0", b"2"]
    assert peer.heard(channel, "CLOSE_RECEIVER")


@SIDES
@pytest.mark.parametrize("mode", list(Mode))
def test_our_messages_are_sent_as_the_draft_says(ours: Side, mode: Mode) -> None:
    """AQ-STREAM-2, AQ-STREAM-3, AQ-SEND-4, AQ-UNREL-1, AQ-FINISH-1."""
    peer = DraftOnlyPeer(ours)
    channel = given(peer, Give.RECEIVER, mode)
    for number in range(3):
        peer.core.send(channel, b"%d" % number, peer.now)
    peer.core.finish(channel, peer.now)
    streams = peer.about(channel)
    carrying = [stream for stream in streams if "MESSAGE" in stream.names]
    assert len(carrying) == {Mode.ORDERED: 1, Mode.UNORDERED: 3, Mode.UNRELIABLE: 0}[mode]
    assert sum("FINISH_SENDER" in stream.names for stream in streams) == 1
    if mode is Mode.UNRELIABLE:
        assert [f.text for d in peer.datagrams for f in d.frames if f.name == "MESSAGE"] == [
            b"0",
            b"1",
            b"2",
        ]
        assert sum(frame.number for frame in peer.heard(channel, "SENT_UNRELIABLE")) == 3
        peer.on(channel, ack_nack_unreliable(1, 1, 1), CLOSE_RECEIVER, fin=True)
        fates = [
            Delivered(channel, False, ((0, 1), (2, 3))),
            Undelivered(channel, False, ((1, 2),)),
        ]
    else:
        peer.on(channel, ack_reliable(0, 3), CLOSE_RECEIVER, fin=True)
        fates = [Delivered(channel, True, ((0, 3),))]
    events = [each for each in peer.events() if getattr(each, "channel", None) == channel]
    assert events == [*fates, SenderEnded(channel, End.FINISHED)]


@SIDES
def test_a_oneshot_carries_one_message(ours: Side) -> None:
    """AQ-SEND-5, AQ-SEND-6: the finish may come in a stream of its own."""
    peer = DraftOnlyPeer(ours)
    channel = from_creator(ours.other, oneshot=True)
    peer.on(channel, message(0, b"only"), fin=True)
    peer.on(channel, finish_sender(1), fin=True)
    assert peer.heard(channel, "CLOSE_RECEIVER")
    assert peer.closed is None


@SIDES
def test_a_channel_may_be_used_before_its_carrier_arrives(ours: Side) -> None:
    """AQ-ROUTE-1, AQ-ROUTE-2."""
    peer = DraftOnlyPeer(ours)
    channel = from_creator(ours.other, 5)
    peer.datagram(channel, message(0, b"first"))
    peer.wait(0.02)
    assert len(peer.about(channel)) == 1


# -- ends ------------------------------------------------------------------------------------------


@SIDES
def test_a_cancel_without_any_announcement_is_closed_after_a_second(ours: Side) -> None:
    """AQ-CLOSE-3."""
    peer, channel = receiving(ours)
    peer.datagram(channel, message(0, b"never announced"))
    peer.on(channel, CANCEL_SENDER, fin=True)
    peer.wait(0.95)
    assert not peer.heard(channel, "CLOSE_RECEIVER")
    peer.wait(0.1)
    assert peer.heard(channel, "CLOSE_RECEIVER")
    assert ReceiverEnded(channel, End.CANCELLED) in peer.events()


@SIDES
def test_a_finish_that_leaves_a_datagram_unannounced_is_closed(ours: Side) -> None:
    """AQ-FINISH-4: neither an error nor a wait without end."""
    peer, channel = receiving(ours)
    peer.datagram(channel, message(0, b"never announced"))
    peer.on(channel, finish_sender(0), fin=True)
    peer.wait(1.1)
    assert peer.heard(channel, "CLOSE_RECEIVER")
    assert not peer.heard(channel, "ACK_NACK_UNRELIABLE")
    assert peer.closed is None


@SIDES
def test_a_close_by_the_application_ends_although_nothing_is_announced(ours: Side) -> None:
    """AQ-CLOSE-3."""
    peer, channel = receiving(ours)
    peer.datagram(channel, message(0, b"never announced"))
    peer.core.close(channel, peer.now)
    peer.wait(10.1)
    assert peer.heard(channel, "CLOSE_RECEIVER")


@SIDES
def test_a_cancel_of_ours_is_answered_with_a_close(ours: Side) -> None:
    """AQ-CANCEL-1."""
    peer = DraftOnlyPeer(ours)
    channel = given(peer, Give.RECEIVER)
    peer.core.send(channel, b"x", peer.now)
    peer.poll()
    peer.core.cancel(channel, peer.now)
    assert peer.heard(channel, "CANCEL_SENDER")
    assert [stream.reset for stream in peer.about(channel)] == [0x10, None]
    peer.on(channel, CLOSE_RECEIVER, fin=True)
    assert SenderEnded(channel, End.CANCELLED) in peer.events()


# -- ghosts and forgetting -------------------------------------------------------------------------


def finished(ours: Side) -> tuple[DraftOnlyPeer, int]:
    """Return a peer after a channel of our creation ended in good order."""
    peer = DraftOnlyPeer(ours)
    channel = given(peer, Give.RECEIVER)
    peer.core.send(channel, b"x", peer.now)
    peer.core.finish(channel, peer.now)
    peer.on(channel, ack_reliable(0, 1), CLOSE_RECEIVER, fin=True)
    assert SenderEnded(channel, End.FINISHED) in peer.events()
    return peer, channel


@SIDES
def test_a_revived_ghost_is_forgotten_after_a_second_of_quiet(ours: Side) -> None:
    """AQ-ROUTE-5: the draft's memory of the channel has run out by then."""
    peer, channel = finished(ours)
    peer.wait(1.5)
    peer.on(channel, fin=True)  # the peer revived the receiver, and answers its ROUTE_TO
    peer.wait(0.6)
    peer.on(channel, ack_reliable(0, 1))  # another late message came
    peer.wait(0.9)
    assert not peer.heard(channel, "FORGET_CHANNEL")
    peer.wait(0.2)
    assert len(peer.heard(channel, "FORGET_CHANNEL")) == 1
    peer.wait(0.1)
    peer.on(channel, fin=True)  # and revived it again
    peer.wait(1.1)
    assert len(peer.heard(channel, "FORGET_CHANNEL")) == 2
    peer.wait(60)
    assert len(peer.heard(channel, "FORGET_CHANNEL")) == 2


@SIDES
def test_a_lost_channel_is_forgotten_at_once_and_again_after_a_second(ours: Side) -> None:
    """AQ-ROUTE-3, AQ-ROUTE-6."""
    peer = DraftOnlyPeer(ours)
    unknown = from_creator(ours, 7)
    peer.on(unknown, fin=True)
    assert len(peer.heard(unknown, "FORGET_CHANNEL")) == 1
    peer.wait(0.3)
    peer.on(unknown, fin=True)
    peer.wait(0.69)
    assert len(peer.heard(unknown, "FORGET_CHANNEL")) == 1
    peer.wait(0.5)
    assert len(peer.heard(unknown, "FORGET_CHANNEL")) == 2


@SIDES
def test_a_peer_that_answers_at_once_cannot_make_us_lose_acks(ours: Side) -> None:
    """AQ-FORGET-5: its FORGET_CHANNEL overtakes its acks and CLOSE_RECEIVER."""
    peer = DraftOnlyPeer(ours)
    channel = to_creator(ours.other, 3)
    carrier, number = (ENTRYPOINT, 0) if ours == Side.SERVER else (given(peer, Give.SENDER), 0)
    peer.on(carrier, message(number, b"", attach=[(channel, [])]))
    peer.core.take(carrier, 9, peer.now)
    peer.core.send(channel, b"arrived", peer.now)
    peer.core.finish(channel, peer.now)
    peer.on(channel, FORGET_CHANNEL, fin=True)
    peer.wait(2)
    peer.on(channel, ack_reliable(0, 1), CLOSE_RECEIVER, fin=True)
    events = [each for each in peer.events() if getattr(each, "channel", None) == channel]
    assert events == [Delivered(channel, True, ((0, 1),)), SenderEnded(channel, End.FINISHED)]


@SIDES
def test_late_frames_of_a_forgotten_channel_make_no_ghost_at_our_side(ours: Side) -> None:
    """AQ-FORGET-4: longer than the second that the draft asks for."""
    peer, channel = receiving(ours)
    peer.on(channel, FORGET_CHANNEL, fin=True)
    before = peer.core.channel_count
    for seconds in (0.5, 5.0, 500.0):
        peer.wait(seconds)
        peer.datagram(channel, message(0, b"late"))
        peer.on(channel, message(0, b"late"), fin=True)
        assert peer.core.channel_count == before
    assert peer.closed is None


# -- over QUIC -------------------------------------------------------------------------------------


async def test_over_quic_a_ghost_is_forgotten(server: Server) -> None:
    """AQ-ROUTE-5, and the same channel ends in good order before."""
    async with meeting(server) as (peer, connection):
        half = await attach(peer, connection, SERVER_SENDS)
        assert isinstance(half, aqueduct.Sender)
        tx, rx = aqueduct.channel(bytes)
        await half.send(b"", attach=[rx])
        carrier = await peer.frame("MESSAGE", SERVER_SENDS)
        channel = carrier.attachments[0][0]
        acks = peer.on(SERVER_SENDS, ack_reliable(0, 1), fin=False)
        await tx.send(b"x")
        tx.finish()
        await peer.frame("FINISH_SENDER", channel)
        peer.on(channel, ack_reliable(0, 1), CLOSE_RECEIVER)
        await tx.wait_closed()
        heard = asyncio.get_running_loop().time()
        peer.on(channel)
        await peer.frame("FORGET_CHANNEL", channel)
        assert asyncio.get_running_loop().time() - heard > 0.99
        half.finish()
        peer.write(acks, CLOSE_RECEIVER, fin=True)
        await half.wait_closed()


async def test_over_quic_a_cancel_without_announcement_is_closed(server: Server) -> None:
    """AQ-CLOSE-3."""
    async with meeting(server) as (peer, connection):
        peer.datagram(version() + route_to(ENTRYPOINT) + message(0, b"never announced"))
        assert await connection.entrypoint.receive() == b"never announced"
        peer.on(ENTRYPOINT, CANCEL_SENDER)
        await peer.frame("CLOSE_RECEIVER", ENTRYPOINT)
        with pytest.raises(aqueduct.ChannelCancelled):
            await receive_until_error(connection.entrypoint)


async def test_over_quic_a_server_that_knows_only_the_draft_serves_our_client(
    tmp_path: Path,
) -> None:
    """AQ-LIMIT-2: it states no limits, and answers a oneshot request."""
    tls = aqueduct.dev_tls()
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_bytes(tls.certificate)
    key.write_bytes(tls.key)
    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=["aqueduct"], max_datagram_frame_size=65_535
    )
    configuration.load_cert_chain(certificate, key)
    arrived: asyncio.Queue[Peer] = asyncio.Queue()

    def protocol(*args: object, **kwargs: object) -> Peer:
        peer = Peer(*args, **kwargs)
        arrived.put_nowait(peer)
        return peer

    running = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=protocol)
    assert running._transport is not None
    port = running._transport.get_extra_info("sockname")[1]
    try:
        connecting = asyncio.create_task(_ask(port))
        async with asyncio.timeout(60):
            peer = await arrived.get()
            await peer.frame("CONNECTION_HEADERS")
            peer.open(version() + ACK_VERSION)
            peer.open(version() + connection_headers())
            asked = await peer.frame("MESSAGE", ENTRYPOINT)
            assert asked.text == b"question"
            reply = asked.attachments[0][0]
            assert reply == SERVER_ANSWERS
            acks = peer.on(ENTRYPOINT, ack_reliable(0, 1), fin=False)
            peer.on(reply, message(0, b"answer"))
            peer.on(reply, finish_sender(1))
            await peer.frame("CLOSE_RECEIVER", reply)
            await peer.frame("FINISH_SENDER", ENTRYPOINT)
            peer.write(acks, CLOSE_RECEIVER, fin=True)
            assert await connecting == b"answer"
    finally:
        running.close()


async def _ask(port: int) -> bytes:
    async with aqueduct.connect(f"localhost:{port}", trust=aqueduct.dev_trust()) as connection:
        reply, answer = aqueduct.oneshot(bytes)
        await connection.entrypoint.send(b"question", attach=[reply])
        return await answer.receive()
