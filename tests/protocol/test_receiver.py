"""The receiving half: acks, decisions, credit, and how it ends."""

import pytest

from aqueduct.errors import CloseCode
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import Mode
from aqueduct.protocol.events import Delivered, End, Readable, ReceiverEnded, Undelivered
from aqueduct.protocol.receiver import ReceivingHalf
from aqueduct.protocol.receiver_states import RULES, TRANSITIONS, ReceiverInput, ReceiverState
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
    Version,
)
from aqueduct.wire.primitives import MAX_VARINT
from tests.protocol.wires import (
    Pair,
    RawPeer,
    carrier,
    from_client,
    payloads,
    plain,
    server_core,
)

ONESHOT = from_client(0, oneshot=True)


def answers(peer: RawPeer, channel: int = ENTRYPOINT) -> list[Frame]:
    """Return the frames that the core has sent as the receiver of a channel."""
    return peer.said_about(channel)


# -- acks ------------------------------------------------------------------------------------------


def test_a_message_is_acked_within_10_ms() -> None:
    """AQ-ACK-1: one frame for all messages that arrived by then."""
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, plain(0, b"x"))
    peer.wait(0.006)
    peer.more(stream, plain(1, b"x"), MessageFrame(2, ((b"k", b"v"),), (), b""))
    peer.wait(0.0039)
    assert answers(peer) == []
    peer.wait(0.0002)
    assert answers(peer) == [AckReliable(((0, 3),))]
    peer.wait(1)
    assert answers(peer) == [AckReliable(((0, 3),))]


def test_64_messages_are_acked_at_once() -> None:
    """AQ-ACK-1."""
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, *[plain(number) for number in range(63)])
    assert answers(peer) == []
    peer.more(stream, plain(63))
    assert answers(peer) == [AckReliable(((0, 64),))]


def test_acks_are_ranges_of_arrived_numbers() -> None:
    """AQ-ACK-1: gaps are left out."""
    peer = server_core()
    for number in (5, 0, 1, 7):
        peer.routed(ENTRYPOINT, plain(number), fin=True)
    peer.wait(0.011)
    assert answers(peer) == [AckReliable(((0, 2), (5, 6), (7, 8)))]
    peer.routed(ENTRYPOINT, plain(6), fin=True)
    peer.wait(0.011)
    assert answers(peer)[1:] == [AckReliable(((6, 7),))]


def test_a_receiver_sends_its_frames_on_one_stream() -> None:
    """AQ-STREAM-5: it ends after CLOSE_RECEIVER."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(0, b"abc"))
    stream = peer.routed(ENTRYPOINT, plain(0, b"x"), SentUnreliable(1))
    peer.wait(0.02)
    peer.core.take(ENTRYPOINT, 9, peer.now)
    peer.wait(0.02)
    peer.more(stream, FinishSender(1), fin=True)
    (control,) = peer.about(ENTRYPOINT)
    assert control.about == [
        AckReliable(((0, 1),)),
        AckNackUnreliable((1,)),
        Dequeued(4),
        CloseReceiver(),
    ]
    assert control.fin


# -- datagrams -------------------------------------------------------------------------------------


def test_an_unannounced_datagram_is_delivered_but_not_acked() -> None:
    """AQ-UNREL-5: only announced numbers can be decided."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(0, b"x"))
    peer.wait(5)
    assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"x"]
    assert answers(peer) == []
    peer.routed(ENTRYPOINT, SentUnreliable(1))
    peer.wait(0.011)
    assert AckNackUnreliable((1,)) in answers(peer)


def test_announced_numbers_that_arrived_are_acked_soon() -> None:
    """AQ-UNREL-4: up to the first gap."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(0), plain(1))
    peer.datagram_to(ENTRYPOINT, plain(3))
    peer.routed(ENTRYPOINT, SentUnreliable(4))
    peer.wait(0.011)
    assert answers(peer) == [AckNackUnreliable((2,))]
    peer.datagram_to(ENTRYPOINT, plain(2))
    peer.wait(0.011)
    assert answers(peer) == [AckNackUnreliable((2,)), AckNackUnreliable((2,))]


def test_datagrams_under_load_are_decided_together() -> None:
    """AQ-ACK-1: at once after 64, with one frame for all that were read by then."""
    peer = server_core()
    peer.routed(ENTRYPOINT, SentUnreliable(640))
    for number in range(63):
        peer.datagram_to(ENTRYPOINT, plain(number))
    assert answers(peer) == []
    for number in range(63, 640):
        peer.datagram_to(ENTRYPOINT, plain(number))
    assert answers(peer) == [AckNackUnreliable((640,))]


def test_no_deadline_is_left_when_everything_arrived() -> None:
    """AQ-UNREL-4: decided numbers need no timer."""
    peer = server_core()
    peer.routed(ENTRYPOINT, SentUnreliable(2))
    peer.datagram_to(ENTRYPOINT, plain(0), plain(1))
    peer.wait(0.011)
    assert answers(peer) == [AckNackUnreliable((2,))]
    peer.core.handle_timer(peer.now)
    half = peer.core._channels.halves[ENTRYPOINT]
    assert isinstance(half, ReceivingHalf)
    assert half.datagrams is not None
    assert not half.datagrams.deadlines


def test_a_late_announcement_is_answered_soon() -> None:
    """AQ-UNREL-4: the announced datagrams arrived before it."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(0))
    peer.wait(1)
    peer.routed(ENTRYPOINT, SentUnreliable(1))
    peer.wait(0.011)
    assert answers(peer) == [AckNackUnreliable((1,))]


@pytest.mark.parametrize(
    ("rtt", "deadline"), [(0.0, 0.050), (0.010, 0.050), (0.1, 0.2), (0.4, 0.8), (3.0, 1.0)]
)
def test_a_missing_datagram_is_nacked_at_its_deadline(rtt: float, deadline: float) -> None:
    """AQ-UNREL-2: twice the round-trip time, at least 50 ms, at most 1 s; not earlier."""
    peer = server_core()
    peer.core.handle_rtt(rtt)
    peer.routed(ENTRYPOINT, SentUnreliable(2))
    peer.datagram_to(ENTRYPOINT, plain(1))
    peer.wait(deadline - 0.0001)
    assert answers(peer) == []
    peer.wait(0.0052)
    assert answers(peer) == [AckNackUnreliable((0, 1, 1))]


def test_a_late_datagram_is_ignored_after_its_nack() -> None:
    """AQ-UNREL-3: a nack is final; a repeated one is ignored after its ack."""
    peer = server_core()
    peer.routed(ENTRYPOINT, SentUnreliable(3))
    peer.datagram_to(ENTRYPOINT, plain(0, b"in time"))
    peer.wait(0.1)
    assert answers(peer) == [AckNackUnreliable((1,)), AckNackUnreliable((0, 2))]
    for number in (0, 1):
        peer.datagram_to(ENTRYPOINT, plain(number, b"late"))
    peer.datagram_to(
        ENTRYPOINT, MessageFrame(2, ((b"k", b"v"),), carrier(0, 8).attachments, b"late")
    )
    peer.datagram_to(ENTRYPOINT, plain(2, b"late"), plain(3, b"early"))
    peer.assert_alive()
    assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"in time", b"early"]
    assert peer.core.channel_count == 1


def test_the_number_spaces_are_separate() -> None:
    """AQ-SEND-2."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(0, b"datagram"))
    peer.routed(ENTRYPOINT, plain(0, b"stream"))
    peer.assert_alive()
    assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"datagram", b"stream"]


def test_a_datagram_may_hold_messages_only() -> None:
    """AQ-UNREL-7: VERSION may precede them; any other frame is a violation."""
    peer = server_core()
    peer.datagram(Version(), RouteTo(ENTRYPOINT), plain(0, b"a"), plain(1, b"b"))
    peer.datagram_to(ENTRYPOINT, MessageFrame(2, ((b"k", b"v"),), (), b"c"))
    peer.datagram(RouteTo(ENTRYPOINT))
    peer.assert_alive()
    assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"a", b"b", b"c"]
    peer.datagram_to(ENTRYPOINT, plain(3, b"d"), SentUnreliable(4))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-UNREL-7")


@pytest.mark.parametrize("count", [0, 1, 2**32, MAX_VARINT])
def test_an_announcement_of_any_size_is_decided_in_one_frame(count: int) -> None:
    """AQ-UNREL-2."""
    peer = server_core()
    peer.routed(ENTRYPOINT, SentUnreliable(count))
    peer.wait(2)
    assert answers(peer) == ([AckNackUnreliable((0, count))] if count else [])


# -- finish ----------------------------------------------------------------------------------------


def test_a_receiver_ends_once_every_message_has_arrived() -> None:
    """AQ-FINISH-5: reliable ones, in any order."""
    peer = server_core()
    peer.routed(ENTRYPOINT, FinishSender(3), fin=True)
    for number in (2, 0):
        peer.routed(ENTRYPOINT, plain(number, b"%d" % number), fin=True)
    peer.wait(10)
    assert CloseReceiver() not in answers(peer)
    peer.routed(ENTRYPOINT, plain(1, b"1"), fin=True)
    assert answers(peer)[-2:] == [AckReliable(((1, 2),)), CloseReceiver()]
    assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"2", b"0", b"1"]


def test_a_receiver_ends_once_every_datagram_is_decided() -> None:
    """AQ-FINISH-5."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(1, b"x"))
    peer.routed(ENTRYPOINT, SentUnreliable(2), FinishSender(0), fin=True)
    peer.wait(0.049)
    assert answers(peer) == []
    peer.wait(0.01)
    assert answers(peer) == [AckNackUnreliable((0, 1, 1)), CloseReceiver()]


def test_the_application_gets_the_end_after_it_took_everything() -> None:
    """AQ-FINISH-5."""
    peer = server_core()
    peer.routed(ENTRYPOINT, plain(0, b"a"), plain(1, b"b"), FinishSender(2), fin=True)
    assert peer.events() == [Readable(ENTRYPOINT)]
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert peer.events() == []
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert peer.events() == [ReceiverEnded(ENTRYPOINT, End.FINISHED)]
    assert peer.core.leftovers() == []


def test_a_channel_without_messages_is_finished_at_once() -> None:
    """AQ-FINISH-5."""
    peer = server_core()
    peer.routed(ENTRYPOINT, FinishSender(0), fin=True)
    assert answers(peer) == [CloseReceiver()]
    assert peer.events() == [ReceiverEnded(ENTRYPOINT, End.FINISHED)]


@pytest.mark.parametrize("frame", [SentUnreliable(1), FinishSender(1)])
def test_an_announcement_after_the_finish_is_a_violation(frame: Frame) -> None:
    """AQ-FINISH-3."""
    peer = server_core()
    peer.routed(ENTRYPOINT, FinishSender(1), frame)
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-FINISH-3")


def test_numbers_beyond_the_finish_are_a_violation() -> None:
    """AQ-FINISH-4: before and after it."""
    peer = server_core()
    peer.routed(ENTRYPOINT, plain(1), FinishSender(1))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-FINISH-4")
    peer = server_core()
    peer.routed(ENTRYPOINT, SentUnreliable(1), FinishSender(1))
    peer.assert_alive()
    peer.routed(ENTRYPOINT, plain(1))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-FINISH-4")


@pytest.mark.parametrize("late", [False, True])
def test_a_datagram_that_a_finish_left_unannounced_is_not_acked(late: bool) -> None:
    """AQ-FINISH-4: it counts as never announced, whether it comes before or after the finish."""
    peer = server_core()
    if not late:
        peer.datagram_to(ENTRYPOINT, plain(1, b"seen"))
    peer.routed(ENTRYPOINT, SentUnreliable(1), FinishSender(0), fin=True)
    if late:
        peer.datagram_to(ENTRYPOINT, plain(1, b"unseen"), plain(2))
        peer.datagram_to(ENTRYPOINT, MessageFrame(3, ((b"k", b"v"),), (), b""))
    peer.wait(0.1)
    assert answers(peer) == [AckNackUnreliable((0, 1)), CloseReceiver()]
    taken = payloads(peer.core.take(ENTRYPOINT, 9, peer.now))
    assert taken == ([] if late else [b"seen"])
    assert peer.core.leftovers() == []


# -- cancel ----------------------------------------------------------------------------------------


def test_a_cancel_drops_the_queue_and_notifies_the_application() -> None:
    """AQ-CANCEL-4: arrived messages are acked before the end (AQ-CLOSE-2)."""
    peer = server_core()
    peer.routed(ENTRYPOINT, plain(0, b"a"), plain(1, b"b"))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.events()
    peer.routed(ENTRYPOINT, CancelSender(), fin=True)
    assert peer.events() == [ReceiverEnded(ENTRYPOINT, End.CANCELLED)]
    assert peer.core.take(ENTRYPOINT, 9, peer.now) == []
    assert answers(peer) == [AckReliable(((0, 2),)), CloseReceiver()]
    assert peer.core.held_bytes == 0
    assert not any("receiver" in line for line in peer.core.leftovers())


def test_a_cancel_after_a_finish_is_a_violation() -> None:
    """AQ-CANCEL-3."""
    peer = server_core()
    peer.routed(ENTRYPOINT, FinishSender(1))
    peer.routed(ENTRYPOINT, CancelSender())
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-CANCEL-3")


@pytest.mark.parametrize("mode", list(Mode))
def test_both_sides_of_a_cancel_agree(mode: Mode) -> None:
    """AQ-CANCEL-1 to AQ-CANCEL-4: taken messages are delivered, and no state is left."""
    pair = Pair()
    channel = pair.give_receiver(mode)
    pair.client.send(channel, b"seen", pair.now)
    pair.run()
    assert payloads(pair.server.take(channel, 1, pair.now)) == [b"seen"]
    pair.client.send(channel, b"unseen", pair.now)
    pair.client.cancel(channel, pair.now)
    pair.wait(0.2)
    reliable = mode is not Mode.UNRELIABLE
    fates = [e for e in pair.at_client() if isinstance(e, Delivered | Undelivered)]
    assert fates == [
        Delivered(channel, reliable, ((0, 1),)),
        Undelivered(channel, reliable, ((1, 2),)),
    ]
    assert ReceiverEnded(channel, End.CANCELLED) in pair.at_server()
    assert pair.client.channel_count == pair.server.channel_count == 1


# -- close -----------------------------------------------------------------------------------------


def test_a_closed_receiver_acks_what_arrived_and_ends() -> None:
    """AQ-CLOSE-1 and AQ-CLOSE-2: the queue is dropped, but acked."""
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, plain(0, b"a"), SentUnreliable(3))
    peer.datagram_to(ENTRYPOINT, plain(1, b"b"))
    peer.core.close(ENTRYPOINT, peer.now)
    assert answers(peer) == [
        AckReliable(((0, 1),)),
        AckNackUnreliable((0, 1, 1, 1)),
        CloseReceiver(),
    ]
    peer.more(stream, plain(1, b"later"))
    assert peer.core.take(ENTRYPOINT, 9, peer.now) == []
    assert peer.core.held_bytes == 0
    assert [event for event in peer.events() if event != Readable(ENTRYPOINT)] == []


def test_a_receiver_closes_at_once_if_no_announcement_is_missing() -> None:
    """AQ-CLOSE-1: closing again is a no-op."""
    peer = server_core()
    peer.core.close(ENTRYPOINT, peer.now)
    peer.core.close(ENTRYPOINT, peer.now)
    assert answers(peer) == [CloseReceiver()]
    assert peer.core.leftovers() == []


def test_a_closed_receiver_has_no_timers() -> None:
    """AQ-CLOSE-2: all frames were sent, and no deadline is left."""
    peer = server_core()
    peer.routed(ENTRYPOINT, plain(0, b"a"), SentUnreliable(3))
    assert peer.core.next_timer() is not None
    peer.core.close(ENTRYPOINT, peer.now)
    assert peer.core.next_timer() is None


def test_a_closing_receiver_waits_until_processed_datagrams_are_announced() -> None:
    """AQ-CLOSE-3: otherwise a message could be both delivered and nacked."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(0, b"a"), plain(1, b"b"))
    assert payloads(peer.core.take(ENTRYPOINT, 1, peer.now)) == [b"a"]
    peer.core.close(ENTRYPOINT, peer.now)
    peer.wait(0.9)
    assert CloseReceiver() not in answers(peer)
    stream = peer.routed(ENTRYPOINT, plain(0, b"ignored"), SentUnreliable(1))
    peer.datagram_to(ENTRYPOINT, plain(2, b"ignored"))
    assert CloseReceiver() not in answers(peer)
    peer.more(stream, SentUnreliable(4))
    said = [frame for frame in answers(peer) if not isinstance(frame, Dequeued)]
    lengths = [frame.lengths for frame in said if isinstance(frame, AckNackUnreliable)]
    assert lengths in ([(2, 3)], [(1,), (1, 3)])
    assert said[-1] == CloseReceiver()
    assert not any(isinstance(frame, AckReliable) for frame in said)


@pytest.mark.parametrize("reset", [True, False])
def test_a_closing_receiver_stops_waiting_when_the_announcing_stream_ends(reset: bool) -> None:
    """AQ-CLOSE-3."""
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, SentUnreliable(1))
    peer.datagram_to(ENTRYPOINT, plain(1, b"b"))
    peer.core.close(ENTRYPOINT, peer.now)
    peer.wait(0.9)
    assert CloseReceiver() not in answers(peer)
    if reset:
        peer.reset(stream)
    else:
        peer.more(stream, fin=True)
    assert CloseReceiver() in answers(peer)
    assert peer.core.leftovers() == []


def test_a_cancelled_receiver_waits_for_announcements_too() -> None:
    """AQ-CLOSE-3: CANCEL_SENDER may overtake the sender's control stream."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(0, b"a"))
    peer.routed(ENTRYPOINT, CancelSender(), fin=True)
    assert peer.events()[-1] == ReceiverEnded(ENTRYPOINT, End.CANCELLED)
    assert answers(peer) == []
    peer.routed(ENTRYPOINT, SentUnreliable(1), fin=True)
    assert answers(peer) == [AckNackUnreliable((1,)), CloseReceiver()]


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_closing_receiver_does_not_wait_for_ever_for_an_announcement(cancelled: bool) -> None:
    """AQ-CLOSE-3: a peer that knows only the draft may never announce what it cancelled."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(0, b"a"), plain(1, b"b"))
    if cancelled:
        peer.routed(ENTRYPOINT, CancelSender(), fin=True)
    else:
        peer.core.close(ENTRYPOINT, peer.now)
    stream = peer.routed(ENTRYPOINT, SentUnreliable(1))
    peer.wait(0.99 if cancelled else 9.99)
    assert CloseReceiver() not in answers(peer)
    peer.wait(0.02)
    said = answers(peer)
    assert said[-1] == CloseReceiver()
    assert [frame for frame in said if isinstance(frame, AckNackUnreliable)] == [
        AckNackUnreliable((1,))
    ]
    assert peer.core.next_timer() is None
    peer.more(stream, SentUnreliable(1), fin=True)
    assert answers(peer) == said
    peer.assert_alive()
    assert peer.core.leftovers() == []


def test_a_closing_receiver_whose_close_is_deferred_still_ends() -> None:
    """AQ-CLOSE-3 and AQ-LIMIT-4: CLOSE_RECEIVER waits for something else."""
    peer = server_core(Config(limits=Limits(max_channels=1)))
    peer.routed(ENTRYPOINT, carrier(0, from_client(1), from_client(2)))
    peer.routed(from_client(1), FinishSender(0), fin=True)
    peer.datagram_to(from_client(2), plain(0))
    peer.routed(from_client(2), CancelSender(), fin=True)
    peer.wait(3)
    assert CloseReceiver() in peer.said_about(from_client(1))
    assert CloseReceiver() not in peer.said_about(from_client(2))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert CloseReceiver() in peer.said_about(from_client(2))


def test_a_closing_receiver_processes_a_finish_or_cancel() -> None:
    """AQ-CLOSE-3: the first of them ends the wait."""
    for frames in ((SentUnreliable(1), FinishSender(0)), (CancelSender(),)):
        peer = server_core()
        peer.datagram_to(ENTRYPOINT, plain(0, b"a"))
        peer.core.close(ENTRYPOINT, peer.now)
        peer.routed(ENTRYPOINT, *frames, fin=True)
        peer.assert_alive()
        peer.routed(ENTRYPOINT, SentUnreliable(1), fin=True)
        peer.assert_alive()
        assert answers(peer)[-1] == CloseReceiver()


def test_a_finished_channel_can_be_closed_before_it_is_drained() -> None:
    """AQ-CLOSE-1: CLOSE_RECEIVER is sent once."""
    peer = server_core()
    peer.routed(ENTRYPOINT, plain(0, b"a"), FinishSender(1), fin=True)
    peer.core.close(ENTRYPOINT, peer.now)
    assert answers(peer).count(CloseReceiver()) == 1
    assert peer.core.leftovers() == []
    peer = server_core()
    peer.routed(ENTRYPOINT, plain(0, b"a"), FinishSender(2), fin=True)
    peer.core.close(ENTRYPOINT, peer.now)
    assert answers(peer) == [AckReliable(((0, 1),)), CloseReceiver()]
    assert peer.core.leftovers() == []


@pytest.mark.parametrize("mode", list(Mode))
def test_no_message_is_both_taken_and_nacked(mode: Mode) -> None:
    """AQ-CLOSE-3: with delayed acks and announcements."""
    pair = Pair()
    channel = pair.give_receiver(mode)
    for number in range(4):
        pair.client.send(channel, b"%d" % number, pair.now)
    pair.to_client.hold_everything()
    pair.run()
    seen = payloads(pair.server.take(channel, 2, pair.now))
    pair.server.close(channel, pair.now)
    pair.wait(0.01)
    pair.to_client.release()
    pair.wait(0.2)
    delivered = {
        number
        for event in pair.at_client()
        if isinstance(event, Delivered) and event.channel == channel
        for start, stop in event.ranges
        for number in range(start, stop)
    }
    assert {int(payload) for payload in seen} <= delivered
    assert pair.client.channel_count == pair.server.channel_count == 1


# -- oneshot ---------------------------------------------------------------------------------------


def test_a_second_message_on_a_oneshot_channel_is_a_violation() -> None:
    """AQ-SEND-6: in streams, in datagrams, in one of each, or only announced."""
    for at in range(5):
        peer = server_core()
        if at == 0:
            peer.routed(ONESHOT, plain(0), plain(1))
        elif at == 1:
            peer.datagram_to(ONESHOT, plain(0), plain(1))
        elif at == 2:
            peer.datagram_to(ONESHOT, plain(0))
            peer.assert_alive()
            peer.routed(ONESHOT, plain(0))
        elif at == 3:
            peer.routed(ONESHOT, FinishSender(2))
        else:
            peer.routed(ONESHOT, SentUnreliable(1), FinishSender(1))
        peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-SEND-6")


def test_a_oneshot_channel_receives_one_message() -> None:
    """AQ-SEND-6."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, ONESHOT))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.routed(ONESHOT, plain(0, b"x"), FinishSender(1), fin=True)
    assert payloads(peer.core.take(ONESHOT, 9, peer.now)) == [b"x"]
    assert ReceiverEnded(ONESHOT, End.FINISHED) in peer.events()


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("frame", [SentUnreliable(1), FinishSender(0)])
def test_announcements_and_the_finish_on_two_streams_are_a_violation(
    frame: Frame, over: bool
) -> None:
    """AQ-STREAM-4: also if the first stream has ended."""
    peer = server_core()
    peer.routed(ENTRYPOINT, SentUnreliable(1), fin=over)
    peer.routed(ENTRYPOINT, frame)
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-STREAM-4")


def test_a_receiver_accepts_any_mix_of_streams_and_datagrams() -> None:
    """AQ-SEND-3: the mode is the sender's choice."""
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, plain(0, b"a"), plain(1, b"b"))
    peer.routed(ENTRYPOINT, plain(4, b"e"), fin=True)
    peer.datagram_to(ENTRYPOINT, plain(0, b"x"))
    peer.more(stream, plain(2, b"c"), SentUnreliable(1), plain(3, b"d"), FinishSender(5), fin=True)
    peer.wait(0.02)
    assert payloads(peer.core.take(ENTRYPOINT, 99, peer.now)) == [
        b"a",
        b"b",
        b"e",
        b"x",
        b"c",
        b"d",
    ]
    assert peer.events()[-1] == ReceiverEnded(ENTRYPOINT, End.FINISHED)


def test_a_number_used_twice_is_a_violation() -> None:
    """AQ-SEND-2: in either space, on one stream or two, also if the message was taken."""
    for datagrams in (False, True):
        for taken in (False, True):
            peer = server_core()
            for _ in range(2):
                if datagrams:
                    peer.datagram_to(ENTRYPOINT, plain(3))
                else:
                    peer.routed(ENTRYPOINT, plain(3), fin=True)
                if taken:
                    peer.core.take(ENTRYPOINT, 9, peer.now)
            peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-SEND-2")


def test_too_many_gaps_are_a_violation_in_streams_and_a_loss_in_datagrams() -> None:
    """AQ-LIMIT-6."""
    config = Config(max_ranges=10)
    peer = server_core(config)
    for number in range(10):
        peer.routed(ENTRYPOINT, plain(2 * number, b"x"), fin=True)
    peer.assert_alive()
    peer.routed(ENTRYPOINT, plain(100, b"x"), fin=True)
    peer.assert_closed(CloseCode.LIMIT_EXCEEDED, "AQ-LIMIT-6")

    peer = server_core(config)
    for number in range(12):
        peer.datagram_to(ENTRYPOINT, plain(2 * number, b"x"))
    peer.assert_alive()
    assert len(payloads(peer.core.take(ENTRYPOINT, 99, peer.now))) == 10
    peer.routed(ENTRYPOINT, SentUnreliable(24))
    peer.wait(0.1)
    decided = [f.lengths for f in answers(peer) if isinstance(f, AckNackUnreliable)]
    assert sum(sum(lengths) for lengths in decided) == 24
    assert sum(sum(lengths[::2]) for lengths in decided) == 10


def test_a_channel_attached_twice_is_a_violation() -> None:
    """AQ-SEND-7: in two messages; within one it is AQ-FRAME-9."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, from_client(1)), carrier(1, from_client(1)))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-SEND-7")
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, carrier(0, from_client(1)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.more(stream, carrier(1, from_client(1)))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-SEND-7")
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, carrier(0, from_client(1)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.routed(from_client(1), CancelSender(), fin=True)
    peer.wait(5)
    peer.more(stream, carrier(1, from_client(1)))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-SEND-7")


# -- the table -------------------------------------------------------------------------------------


def test_every_input_of_the_peer_has_a_transition_or_a_rule() -> None:
    """AQ-CODE-3: a missing transition names its rule."""
    of_peer = {
        ReceiverInput.MESSAGE,
        ReceiverInput.SENT_UNRELIABLE,
        ReceiverInput.FINISH_SENDER,
        ReceiverInput.CANCEL_SENDER,
    }
    for state in (ReceiverState.OPEN, ReceiverState.FINISHING, ReceiverState.CLOSING):
        for cause in of_peer:
            assert (state, cause) in TRANSITIONS or cause in RULES
    for state in set(ReceiverState) - {ReceiverState.GONE}:
        assert (state, ReceiverInput.CLOSE) in TRANSITIONS
        assert (state, ReceiverInput.DROP) in TRANSITIONS


def test_readable_is_emitted_once_until_the_queue_was_empty() -> None:
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, plain(0, b"a"))
    peer.more(stream, plain(1, b"b"))
    assert peer.events() == [Readable(ENTRYPOINT)]
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.more(stream, plain(2, b"c"))
    assert peer.events() == []
    peer.core.take(ENTRYPOINT, 9, peer.now)
    peer.more(stream, plain(3, b"d"))
    assert peer.events() == [Readable(ENTRYPOINT)]
