"""The sending half: modes and streams, numbers, announcements, and how it ends."""

import pytest

from aqueduct.errors import (
    ChannelClosed,
    CloseCode,
    LocalProtocolError,
    ReceiverClosed,
    StreamCode,
    WouldBlock,
)
from aqueduct.protocol.actions import Room, WriteStream
from aqueduct.protocol.config import SAFE_DATAGRAM, Config, Limits
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.events import Delivered, End, SenderEnded, Undelivered, Writable
from aqueduct.protocol.sender_states import TRANSITIONS, SenderInput, SenderState
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    CancelSender,
    CloseReceiver,
    Dequeued,
    FinishSender,
    Frame,
    MessageFrame,
    RouteTo,
    SentUnreliable,
)
from tests.protocol.wires import (
    GIVE_RECEIVER,
    Pair,
    RawPeer,
    carrier,
    client_core,
    credit,
    payloads,
    plain,
    server_core,
    to_client,
)

BIG = b"x" * 2_000
"""More than fits a datagram."""


def sender(mode: Mode, config: Config | None = None) -> RawPeer:
    """Return a client whose entrypoint sends in a mode."""
    peer = client_core(config)
    peer.core.set_mode(ENTRYPOINT, mode)
    return peer


def oneshot_sender(mode: Mode) -> tuple[RawPeer, int]:
    """Return a client with an accessible oneshot channel to send on."""
    peer = client_core()
    attach = [Attach(Give.RECEIVER, oneshot=True, mode=mode)]
    channel = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=attach).channels[0]
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)))
    peer.poll()
    peer.events()
    return peer, channel


def datagram_messages(peer: RawPeer) -> list[Frame]:
    peer.poll()
    return [
        frame for frames in peer.datagrams for frame in frames if isinstance(frame, MessageFrame)
    ]


# -- modes and streams -----------------------------------------------------------------------------


def test_an_ordered_sender_writes_all_messages_to_one_stream() -> None:
    """AQ-STREAM-2: in the order of their numbers, plain ones and others."""
    peer = sender(Mode.ORDERED)
    for number in range(3):
        assert peer.core.send(ENTRYPOINT, b"%d" % number, peer.now) == number
        peer.poll()
    sent = peer.core.send_message(ENTRYPOINT, b"3", peer.now, attach=[GIVE_RECEIVER])
    assert (sent.number, sent.reliable) == (3, True)
    (stream,) = peer.about(ENTRYPOINT)
    assert stream.about == [
        plain(0, b"0"),
        plain(1, b"1"),
        plain(2, b"2"),
        carrier(3, *sent.channels, payload=b"3"),
    ]
    assert not stream.fin


def test_an_unordered_sender_writes_each_message_to_a_stream_of_its_own() -> None:
    """AQ-STREAM-3: the stream ends after it."""
    peer = sender(Mode.UNORDERED)
    for number in range(3):
        assert peer.core.send(ENTRYPOINT, b"%d" % number, peer.now) == number
    streams = peer.about(ENTRYPOINT)
    assert [stream.about for stream in streams] == [[plain(n, b"%d" % n)] for n in range(3)]
    assert all(stream.fin for stream in streams)


def test_an_unreliable_sender_uses_datagrams() -> None:
    """AQ-SEND-4: several messages in one."""
    peer = sender(Mode.UNRELIABLE)
    for number in range(3):
        sent = peer.core.send_message(ENTRYPOINT, b"x", peer.now)
        assert (sent.number, sent.reliable) == (number, False)
    peer.poll()
    assert peer.datagrams == [[RouteTo(ENTRYPOINT), plain(0, b"x"), plain(1, b"x"), plain(2, b"x")]]
    assert peer.about(ENTRYPOINT) == []


def test_a_message_that_does_not_fit_a_datagram_is_sent_on_a_stream() -> None:
    """AQ-STREAM-3 and AQ-SEND-4: with a number of the reliable space."""
    peer = sender(Mode.UNRELIABLE)
    sent = [peer.core.send_message(ENTRYPOINT, p, peer.now) for p in (b"a", BIG, b"b", BIG)]
    assert [(each.number, each.reliable) for each in sent] == [
        (0, False),
        (0, True),
        (1, False),
        (1, True),
    ]
    assert [stream.about for stream in peer.about(ENTRYPOINT)] == [[plain(0, BIG)], [plain(1, BIG)]]
    assert all(stream.fin for stream in peer.about(ENTRYPOINT))
    assert datagram_messages(peer) == [plain(0, b"a"), plain(1, b"b")]


@pytest.mark.parametrize("mode", list(Mode))
def test_the_mode_is_chosen_before_the_first_message(mode: Mode) -> None:
    """AQ-SEND-3."""
    peer = client_core()
    peer.core.set_mode(ENTRYPOINT, Mode.UNORDERED)
    peer.core.set_mode(ENTRYPOINT, mode)
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    with pytest.raises(LocalProtocolError):
        peer.core.set_mode(ENTRYPOINT, Mode.ORDERED)


def test_the_mode_of_a_received_sender_can_be_chosen() -> None:
    """AQ-SEND-3."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, to_client(0)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.core.set_mode(to_client(0), Mode.UNRELIABLE)
    peer.core.send(to_client(0), b"x", peer.now)
    assert datagram_messages(peer) == [plain(0, b"x")]


@pytest.mark.parametrize("mode", list(Mode))
def test_every_stream_and_datagram_of_a_channel_begins_with_its_route(mode: Mode) -> None:
    """AQ-STREAM-1: without VERSION, which was acked."""
    peer = sender(mode)
    for payload in (b"x", BIG, b"y"):
        peer.core.send(ENTRYPOINT, payload, peer.now)
    peer.wait(0.03)
    peer.core.finish(ENTRYPOINT, peer.now)
    peer.poll()
    fresh = [seen.frames for seen in peer.streams.values() if seen.channel == ENTRYPOINT]
    assert fresh
    for frames in fresh + peer.datagrams:
        assert frames[0] == RouteTo(ENTRYPOINT)
        assert len(frames) > 1


@pytest.mark.parametrize("mode", list(Mode))
def test_numbers_count_from_zero_without_gaps_in_each_space(mode: Mode) -> None:
    """AQ-SEND-2."""
    peer = sender(mode)
    sent = [
        peer.core.send_message(ENTRYPOINT, payload, peer.now)
        for payload in (b"", BIG, b"x", BIG, b"y", b"z")
    ]
    for reliable in (True, False):
        space = [each.number for each in sent if each.reliable is reliable]
        assert space == list(range(len(space)))


# -- announcements ---------------------------------------------------------------------------------


def test_datagrams_are_announced_within_25_ms_of_the_first() -> None:
    """AQ-UNREL-1: one SENT_UNRELIABLE for all of them, in a stream that stays open."""
    peer = sender(Mode.UNRELIABLE)
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    peer.wait(0.02)
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    assert peer.about(ENTRYPOINT) == []
    peer.wait(0.0051)
    (control,) = peer.about(ENTRYPOINT)
    assert control.about == [SentUnreliable(2)]
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    peer.wait(0.026)
    (control,) = peer.about(ENTRYPOINT)
    assert control.about == [SentUnreliable(2), SentUnreliable(1)]
    assert not control.fin
    peer.wait(1)
    assert len(control.about) == 2


def test_an_unreliable_sender_without_credit_drops_its_oldest_unsent_datagrams() -> None:
    """AQ-UNREL-6: they keep their numbers, are announced, and return their credit."""
    peer = client_core(Config(max_datagram=60), limits=Limits(channel_window=100))
    peer.core.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    for number in range(4):
        payload = bytes([number]) * 40
        assert peer.core.send(ENTRYPOINT, payload, peer.now) == number
    assert datagram_messages(peer) == [plain(2, b"\x02" * 40), plain(3, b"\x03" * 40)]
    assert credit(peer.core, ENTRYPOINT) == 20
    peer.wait(0.03)
    assert peer.said_about(ENTRYPOINT) == [SentUnreliable(4)]


def test_an_unreliable_sender_without_unsent_datagrams_drops_the_message_itself() -> None:
    """AQ-UNREL-6."""
    peer = client_core(limits=Limits(channel_window=100))
    peer.core.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    peer.core.send(ENTRYPOINT, b"x" * 90, peer.now)
    peer.poll()
    assert peer.core.send(ENTRYPOINT, b"y" * 20, peer.now) == 1
    assert peer.core.send(ENTRYPOINT, b"z" * 10, peer.now) == 2
    assert datagram_messages(peer) == [plain(0, b"x" * 90), plain(2, b"z" * 10)]
    peer.wait(0.03)
    assert peer.said_about(ENTRYPOINT) == [SentUnreliable(3)]
    peer.routed(ENTRYPOINT, AckNackUnreliable((1, 1, 1)))
    assert peer.events() == [
        Delivered(ENTRYPOINT, False, ((0, 1), (2, 3))),
        Undelivered(ENTRYPOINT, False, ((1, 2),)),
    ]


def test_an_unreliable_sender_waits_for_credit_for_a_message_on_a_stream() -> None:
    """AQ-UNREL-6."""
    peer = client_core(limits=Limits(channel_window=3_000))
    peer.core.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    peer.core.send(ENTRYPOINT, BIG, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(ENTRYPOINT, BIG, peer.now)
    peer.core.send(ENTRYPOINT, b"x", peer.now)


def test_channels_in_a_dropped_message_are_lost() -> None:
    """AQ-UNREL-6 and AQ-LIN-3: its number is nacked."""
    peer = client_core(limits=Limits(channel_window=100))
    peer.core.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    peer.core.send(ENTRYPOINT, b"x" * 100, peer.now)
    peer.poll()
    sent = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER])
    assert (sent.number, sent.reliable) == (1, False)
    peer.wait(0.03)
    peer.routed(ENTRYPOINT, AckNackUnreliable((1, 1)))
    assert SenderEnded(sent.channels[0], End.LOST, (ENTRYPOINT,)) in peer.events()


def test_datagrams_that_have_not_left_are_not_announced() -> None:
    """AQ-PRIO-6: an announcement that overtakes its datagrams has them counted as lost."""
    peer = sender(Mode.UNRELIABLE)
    room = Room()
    room.bytes = 0
    for payload in (b"a", b"b"):
        peer.core.send(ENTRYPOINT, payload, peer.now)
    peer.core.handle_timer(peer.now + 0.026)
    peer.core.finish(ENTRYPOINT, peer.now)
    assert peer.core.poll_actions(room) == []
    peer.poll()
    assert len(peer.datagrams) == 1
    (control,) = peer.about(ENTRYPOINT)
    assert control.about == [SentUnreliable(2), FinishSender(0)]
    assert control.fin


def test_datagrams_that_left_are_announced_while_others_wait() -> None:
    """AQ-UNREL-1 and AQ-PRIO-6."""
    peer = sender(Mode.UNRELIABLE)
    peer.core.send(ENTRYPOINT, b"a", peer.now)
    peer.poll()
    peer.core.send(ENTRYPOINT, b"b", peer.now)
    peer.core.handle_timer(peer.now + 0.026)
    room = Room()
    room.bytes, room.urgent, room.writes = 0, 100, 1
    (write,) = peer.core.poll_actions(room)
    assert isinstance(write, WriteStream)
    assert write.data.endswith(SentUnreliable(1).encode())
    peer._read(write)
    peer.poll()
    peer.wait(0.06)
    assert peer.log[-1][1] == SentUnreliable(1)


# -- acks ------------------------------------------------------------------------------------------


def test_each_message_is_delivered_once_however_often_it_is_acked() -> None:
    """AQ-ACK-2."""
    peer = sender(Mode.UNORDERED)
    for _ in range(6):
        peer.core.send(ENTRYPOINT, b"", peer.now)
    stream = peer.routed(ENTRYPOINT, AckReliable(((1, 2), (4, 5))))
    peer.more(stream, AckReliable(((1, 2),)), AckReliable(((0, 6),)), AckReliable(((0, 6),)))
    assert peer.events() == [
        Delivered(ENTRYPOINT, True, ((1, 2), (4, 5))),
        Delivered(ENTRYPOINT, True, ((0, 1), (2, 4), (5, 6))),
    ]


def test_acking_an_unsent_number_is_a_violation() -> None:
    """AQ-ACK-2."""
    peer = sender(Mode.ORDERED)
    peer.core.send(ENTRYPOINT, b"", peer.now)
    peer.routed(ENTRYPOINT, AckReliable(((0, 2),)))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-ACK-2")


def test_decisions_are_reported_as_they_arrive() -> None:
    """AQ-UNREL-5: each continues where the previous one ended."""
    peer = sender(Mode.UNRELIABLE)
    for _ in range(6):
        peer.core.send(ENTRYPOINT, b"", peer.now)
    peer.wait(0.03)
    stream = peer.routed(ENTRYPOINT, AckNackUnreliable((2, 1)))
    peer.more(stream, AckNackUnreliable((0, 1, 2)))
    assert peer.events() == [
        Delivered(ENTRYPOINT, False, ((0, 2),)),
        Undelivered(ENTRYPOINT, False, ((2, 3),)),
        Delivered(ENTRYPOINT, False, ((4, 6),)),
        Undelivered(ENTRYPOINT, False, ((3, 4),)),
    ]


@pytest.mark.parametrize("frame", [AckReliable(((0, 1),)), Dequeued(0), CloseReceiver()])
def test_receiver_frames_on_two_streams_are_a_violation(frame: Frame) -> None:
    """AQ-STREAM-5."""
    peer = sender(Mode.ORDERED)
    peer.core.send(ENTRYPOINT, b"", peer.now)
    peer.routed(ENTRYPOINT, Dequeued(0))
    peer.routed(ENTRYPOINT, frame)
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-STREAM-5")


# -- finish ----------------------------------------------------------------------------------------


def test_an_ordered_sender_finishes_on_its_message_stream() -> None:
    """AQ-FINISH-1 and AQ-STREAM-4."""
    peer = sender(Mode.ORDERED)
    for _ in range(3):
        peer.core.send(ENTRYPOINT, b"", peer.now)
    peer.core.finish(ENTRYPOINT, peer.now)
    (stream,) = peer.about(ENTRYPOINT)
    assert stream.about == [plain(0), plain(1), plain(2), FinishSender(3)]
    assert stream.fin


def test_an_unordered_sender_finishes_on_a_control_stream() -> None:
    """AQ-FINISH-1 and AQ-STREAM-4."""
    peer = sender(Mode.UNORDERED)
    for _ in range(3):
        peer.core.send(ENTRYPOINT, b"", peer.now)
    peer.core.finish(ENTRYPOINT, peer.now)
    (control,) = [seen for seen in peer.about(ENTRYPOINT) if FinishSender(3) in seen.about]
    assert control.about == [FinishSender(3)]
    assert control.fin


def test_everything_is_announced_before_the_finish() -> None:
    """AQ-FINISH-2: on the same stream; AQ-FINISH-1 counts the messages in streams."""
    peer = sender(Mode.UNRELIABLE)
    for payload in (b"a", b"b", BIG):
        peer.core.send(ENTRYPOINT, payload, peer.now)
    peer.wait(0.03)
    peer.core.send(ENTRYPOINT, b"c", peer.now)
    peer.core.finish(ENTRYPOINT, peer.now)
    control = peer.about(ENTRYPOINT)[-1]
    assert control.about == [SentUnreliable(2), SentUnreliable(1), FinishSender(1)]
    assert control.fin
    peer.wait(1)
    assert len(peer.about(ENTRYPOINT)) == 2


@pytest.mark.parametrize("mode", list(Mode))
def test_a_sender_that_sent_nothing_can_finish(mode: Mode) -> None:
    """AQ-FINISH-1."""
    peer = sender(mode)
    peer.core.finish(ENTRYPOINT, peer.now)
    (stream,) = peer.about(ENTRYPOINT)
    assert (stream.about, stream.fin) == ([FinishSender(0)], True)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_finished_sender_ends_when_the_receiver_closes(mode: Mode) -> None:
    """AQ-CLOSE-5: not before."""
    peer = sender(mode)
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    peer.core.finish(ENTRYPOINT, peer.now)
    peer.wait(100)
    assert peer.core.leftovers()[0] == "entrypoint: sender finished"
    acks = AckNackUnreliable((1,)) if mode is Mode.UNRELIABLE else AckReliable(((0, 1),))
    stream = peer.routed(ENTRYPOINT, acks)
    assert peer.core.channel_count == 1
    peer.more(stream, CloseReceiver(), fin=True)
    reliable = mode is not Mode.UNRELIABLE
    assert peer.events() == [
        Delivered(ENTRYPOINT, reliable, ((0, 1),)),
        SenderEnded(ENTRYPOINT, End.FINISHED),
    ]
    assert peer.core.leftovers() == []
    assert all(seen.reset is None for seen in peer.about(ENTRYPOINT))


@pytest.mark.parametrize("mode", list(Mode))
def test_unacked_messages_are_nacked_when_the_receiver_closes(mode: Mode) -> None:
    """AQ-NACK-1: in both number spaces; open streams are reset (AQ-CODE-2)."""
    peer = sender(mode)
    for payload in (BIG, b"x", BIG, b"y"):
        peer.core.send(ENTRYPOINT, payload, peer.now)
    peer.wait(0.03)
    acks: list[Frame] = [AckReliable(((0, 1),))]
    if mode is Mode.UNRELIABLE:
        acks.append(AckNackUnreliable((1,)))
    peer.routed(ENTRYPOINT, *acks, CloseReceiver(), fin=True)
    events = peer.events()
    nacked = [event for event in events if isinstance(event, Undelivered)]
    if mode is Mode.UNRELIABLE:
        assert nacked == [
            Undelivered(ENTRYPOINT, True, ((1, 2),)),
            Undelivered(ENTRYPOINT, False, ((1, 2),)),
        ]
    else:
        assert nacked == [Undelivered(ENTRYPOINT, True, ((1, 4),))]
    assert events[-1] == SenderEnded(ENTRYPOINT, End.RECEIVER_CLOSED)
    resets = {seen.reset for seen in peer.about(ENTRYPOINT)}
    assert resets - {None} == {StreamCode.CANCELLED}
    assert peer.core.leftovers() == []


def test_a_finished_sender_whose_receiver_closed_early_ends_as_closed() -> None:
    """AQ-NACK-1."""
    peer = sender(Mode.ORDERED)
    for _ in range(2):
        peer.core.send(ENTRYPOINT, b"x", peer.now)
    peer.core.finish(ENTRYPOINT, peer.now)
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)), CloseReceiver(), fin=True)
    assert peer.events()[-1] == SenderEnded(ENTRYPOINT, End.RECEIVER_CLOSED)


@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_nothing_is_sent_after_the_end(end: str) -> None:
    """AQ-SEND-1."""
    peer = sender(Mode.ORDERED)
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    getattr(peer.core, end)(ENTRYPOINT, peer.now)
    peer.said()
    with pytest.raises(ChannelClosed):
        peer.core.send(ENTRYPOINT, b"y", peer.now)
    with pytest.raises(ChannelClosed):
        peer.core.send_message(ENTRYPOINT, b"y", peer.now, attach=[GIVE_RECEIVER])
    assert credit(peer.core, ENTRYPOINT) == 0
    assert peer.said() == []
    assert peer.core.channel_count == 1


def test_nothing_is_sent_after_the_receiver_closed() -> None:
    """AQ-SEND-1: at once, even while the lineage delays the end of the sender."""
    peer = client_core()
    channel = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER]).channels[0]
    peer.core.send(channel, b"x", peer.now)
    peer.routed(channel, CloseReceiver(), fin=True)
    for _ in range(2):
        with pytest.raises(ReceiverClosed):
            peer.core.send(channel, b"y", peer.now)
    peer.core.finish(channel, peer.now)
    peer.core.cancel(channel, peer.now)
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)), Dequeued(0))
    assert SenderEnded(channel, End.RECEIVER_CLOSED) in peer.events()
    with pytest.raises(ChannelClosed):
        peer.core.send(channel, b"y", peer.now)


# -- cancel ----------------------------------------------------------------------------------------


def test_an_ordered_sender_cancels_on_a_fresh_stream_and_resets_its_messages() -> None:
    """AQ-CANCEL-1, AQ-STREAM-8 and AQ-CODE-2."""
    peer = sender(Mode.ORDERED)
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    peer.poll()
    peer.core.send(ENTRYPOINT, b"y", peer.now)
    peer.core.cancel(ENTRYPOINT, peer.now)
    messages, cancel = peer.about(ENTRYPOINT)
    assert messages.reset == StreamCode.CANCELLED
    assert messages.about == [plain(0, b"x")], "unsent messages are dropped"
    assert (cancel.about, cancel.fin, cancel.reset) == ([CancelSender()], True, None)


def test_an_unordered_sender_resets_streams_of_unacked_messages() -> None:
    """AQ-CANCEL-1: streams of acked messages are not reset."""
    peer = sender(Mode.UNORDERED)
    for _ in range(3):
        peer.core.send(ENTRYPOINT, b"x", peer.now)
    peer.poll()
    peer.routed(ENTRYPOINT, AckReliable(((1, 2),)))
    peer.core.cancel(ENTRYPOINT, peer.now)
    resets = [seen.reset for seen in peer.about(ENTRYPOINT)]
    assert resets == [StreamCode.CANCELLED, None, StreamCode.CANCELLED, None]


def test_a_sender_of_datagrams_announces_them_before_it_cancels() -> None:
    """AQ-CANCEL-2: its control stream ends and is not reset."""
    peer = sender(Mode.UNRELIABLE)
    for payload in (b"a", b"b", BIG):
        peer.core.send(ENTRYPOINT, payload, peer.now)
    peer.poll()
    peer.core.send(ENTRYPOINT, b"c", peer.now)
    peer.core.cancel(ENTRYPOINT, peer.now)
    big, control, cancel = peer.about(ENTRYPOINT)
    assert big.reset == StreamCode.CANCELLED
    assert (control.about, control.fin, control.reset) == ([SentUnreliable(3)], True, None)
    assert (cancel.about, cancel.fin) == ([CancelSender()], True)
    assert datagram_messages(peer) == [plain(0, b"a"), plain(1, b"b")]
    peer.routed(ENTRYPOINT, AckNackUnreliable((2, 1)), CloseReceiver(), fin=True)
    assert peer.events() == [
        Delivered(ENTRYPOINT, False, ((0, 2),)),
        Undelivered(ENTRYPOINT, False, ((2, 3),)),
        Undelivered(ENTRYPOINT, True, ((0, 1),)),
        SenderEnded(ENTRYPOINT, End.CANCELLED),
    ]


def test_a_sender_whose_datagrams_are_announced_ends_its_control_stream_too() -> None:
    """AQ-CANCEL-2: it tells the receiver that no announcement follows."""
    peer = sender(Mode.UNRELIABLE)
    peer.core.send(ENTRYPOINT, b"a", peer.now)
    peer.wait(0.03)
    peer.core.cancel(ENTRYPOINT, peer.now)
    control, cancel = peer.about(ENTRYPOINT)
    assert control.about[0] == SentUnreliable(1)
    assert set(control.about[1:]) <= {SentUnreliable(0)}
    assert (control.fin, control.reset) == (True, None)
    assert cancel.about == [CancelSender()]


@pytest.mark.parametrize(("first", "then"), [("finish", "cancel"), ("cancel", "finish")])
def test_only_the_first_end_of_a_sender_has_an_effect(first: str, then: str) -> None:
    """AQ-CANCEL-3: a further finish or cancel is a no-op."""
    peer = sender(Mode.ORDERED)
    peer.core.send(ENTRYPOINT, b"x", peer.now)
    getattr(peer.core, first)(ENTRYPOINT, peer.now)
    peer.said()
    getattr(peer.core, then)(ENTRYPOINT, peer.now)
    getattr(peer.core, first)(ENTRYPOINT, peer.now)
    assert peer.said() == []
    stream = peer.routed(ENTRYPOINT, AckReliable(((0, 1),)), CloseReceiver())
    how = End.FINISHED if first == "finish" else End.CANCELLED
    assert peer.events()[-1] == SenderEnded(ENTRYPOINT, how)
    peer.more(stream, fin=True)


# -- oneshot ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.ORDERED, Mode.UNORDERED])
def test_a_oneshot_sender_finishes_after_its_message(mode: Mode) -> None:
    """AQ-SEND-5: in the same stream."""
    peer, channel = oneshot_sender(mode)
    peer.core.send(channel, b"x", peer.now)
    (stream,) = peer.about(channel)
    assert (stream.about, stream.fin) == ([plain(0, b"x"), FinishSender(1)], True)
    with pytest.raises(ChannelClosed):
        peer.core.send(channel, b"y", peer.now)


def test_a_oneshot_sender_of_a_datagram_finishes_on_its_control_stream() -> None:
    """AQ-SEND-5."""
    peer, channel = oneshot_sender(Mode.UNRELIABLE)
    peer.core.send(channel, b"x", peer.now)
    (stream,) = peer.about(channel)
    assert (stream.about, stream.fin) == ([SentUnreliable(1), FinishSender(0)], True)
    assert datagram_messages(peer) == [plain(0, b"x")]


def test_a_large_unreliable_oneshot_message_is_sent_on_one_stream() -> None:
    """AQ-SEND-5."""
    peer, channel = oneshot_sender(Mode.UNRELIABLE)
    peer.core.send(channel, BIG, peer.now)
    (stream,) = peer.about(channel)
    assert (stream.about, stream.fin) == ([plain(0, BIG), FinishSender(1)], True)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_oneshot_channel_delivers_one_message(mode: Mode) -> None:
    """AQ-SEND-5: and leaves no state."""
    pair = Pair()
    channel = pair.give_receiver(mode, oneshot=True)
    pair.client.send(channel, b"only", pair.now)
    pair.wait(0.1)
    assert payloads(pair.server.take(channel, 9, pair.now)) == [b"only"]
    pair.wait(0.1)
    assert SenderEnded(channel, End.FINISHED) in pair.at_client()
    assert pair.client.channel_count == pair.server.channel_count == 1


# -- missing acks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.UNORDERED, Mode.UNRELIABLE])
def test_a_sender_waits_if_too_many_messages_have_no_fate(mode: Mode) -> None:
    """AQ-LIMIT-6: empty messages cost no credit, but memory."""
    peer = sender(mode, Config(max_ranges=10))
    for _ in range(10):
        peer.core.send(ENTRYPOINT, b"", peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(ENTRYPOINT, b"", peer.now)
    peer.wait(0.03)
    acks = AckNackUnreliable((1,)) if mode is Mode.UNRELIABLE else AckReliable(((0, 1),))
    peer.routed(ENTRYPOINT, acks)
    assert Writable(ENTRYPOINT) in peer.events()
    assert peer.core.send(ENTRYPOINT, b"", peer.now) == 10


def test_an_ordered_sender_keeps_no_state_per_message() -> None:
    """AQ-LIMIT-6: so it need not wait."""
    peer = sender(Mode.ORDERED, Config(max_ranges=10))
    for number in range(1000):
        assert peer.core.send(ENTRYPOINT, b"", peer.now) == number


# -- the table -------------------------------------------------------------------------------------


def test_every_command_has_a_transition_in_every_state() -> None:
    """AQ-CANCEL-3: finish and cancel never raise; only an open sender sends."""
    for state in set(SenderState) - {SenderState.GONE}:
        assert (state, SenderInput.FINISH) in TRANSITIONS
        assert (state, SenderInput.CANCEL) in TRANSITIONS
        assert (state, SenderInput.DROP) in TRANSITIONS
        assert ((state, SenderInput.SEND) in TRANSITIONS) is (state is SenderState.OPEN)
    assert all(state is not SenderState.GONE for state, _ in TRANSITIONS)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_message_of_any_size_up_to_the_limit_arrives(mode: Mode) -> None:
    """AQ-SEND-4: also sizes around that of a datagram."""
    pair = Pair()
    channel = pair.give_receiver(mode)
    room = SAFE_DATAGRAM
    sizes = range(room - 20, room + 5)
    for size in sizes:
        pair.client.send(channel, b"x" * size, pair.now)
        pair.run()
    pair.wait(0.1)
    taken = payloads(pair.server.take(channel, 999, pair.now))
    assert sorted(map(len, taken)) == list(sizes)
