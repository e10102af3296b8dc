"""The table of channels: creation, routing, handles, abandoned halves, forgetting and loss."""

from dataclasses import replace

import pytest

from aqueduct.errors import (
    ChannelClosed,
    CloseCode,
    LocalProtocolError,
    ReceiverClosed,
    StreamCode,
)
from aqueduct.protocol.actions import WriteStream
from aqueduct.protocol.config import INITIAL_LIMITS, Config, Limits
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import (
    Delivered,
    End,
    Readable,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
)
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    CancelSender,
    CloseReceiver,
    Dequeued,
    FinishSender,
    ForgetChannel,
    Frame,
    MessageFrame,
    RouteTo,
    SentUnreliable,
)
from tests.protocol.wires import (
    GIVE_RECEIVER,
    GIVE_SENDER,
    WIDE,
    Pair,
    RawPeer,
    carrier,
    client_core,
    from_client,
    from_server,
    payloads,
    plain,
    server_core,
    to_client,
    to_server,
)


def forgotten(peer: RawPeer, channel: int) -> int:
    """Return how many FORGET_CHANNEL frames the core has sent for a channel."""
    return peer.said_about(channel).count(ForgetChannel())


def attached(peer: RawPeer, *attach: Attach, on: int = ENTRYPOINT) -> tuple[int, ...]:
    """Send a message with new channels."""
    return peer.core.send_message(on, b"", peer.now, attach=attach).channels


# -- creation --------------------------------------------------------------------------------------


def test_the_entrypoint_exists_from_the_start() -> None:
    """AQ-CHAN-1: its sender at the client, its receiver at the server."""
    client, server = ConnectionCore(Side.CLIENT), ConnectionCore(Side.SERVER)
    assert client.leftovers() == ["entrypoint: sender open"]
    assert server.leftovers() == ["entrypoint: receiver open"]
    assert client.send(ENTRYPOINT, b"", 0.0) == 0


def test_channels_are_numbered_per_space_in_the_order_of_their_creation() -> None:
    """AQ-CHAN-2: and AQ-CHANID-3, where the entrypoint's space begins at 1."""
    peer = client_core()
    oneshot = Attach(Give.SENDER, oneshot=True)
    assert attached(peer, GIVE_RECEIVER, GIVE_SENDER, oneshot, GIVE_RECEIVER) == (
        from_client(1),
        to_client(0),
        to_client(0, oneshot=True),
        from_client(2),
    )
    assert attached(peer, GIVE_SENDER, GIVE_RECEIVER) == (to_client(1), from_client(3))


def test_a_server_numbers_its_own_channels() -> None:
    """AQ-CHAN-2."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, to_client(0)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert attached(peer, GIVE_RECEIVER, GIVE_SENDER, on=to_client(0)) == (
        from_server(0),
        to_server(0),
    )


def test_a_new_channel_is_usable_before_its_carrier_arrives() -> None:
    """AQ-CHAN-2: its receiver exists when the carrier arrives."""
    pair = Pair()
    sent = pair.client.send_message(ENTRYPOINT, b"", pair.now, attach=[GIVE_RECEIVER])
    channel = sent.channels[0]
    pair.to_server.collect()
    carrying = [a.stream for a in pair.to_server.flying if isinstance(a, WriteStream)]
    pair.client.send(channel, b"first", pair.now)
    pair.to_server.hold_streams(*carrying)
    pair.run()
    assert pair.server.channel_count == 2
    assert pair.at_server() == []
    pair.to_server.release()
    pair.run()
    assert pair.at_server() == [Readable(ENTRYPOINT)]
    pair.server.take(ENTRYPOINT, 1, pair.now)
    assert pair.at_server() == [Readable(channel)]
    assert payloads(pair.server.take(channel, 1, pair.now)) == [b"first"]


def test_the_application_owns_a_half_once_it_takes_the_carrier() -> None:
    """AQ-CHAN-3: earlier events are emitted then."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, from_client(1), from_client(2), to_client(0)))
    peer.routed(from_client(1), plain(0, b"x"))
    peer.routed(from_client(2), CancelSender(), fin=True)
    peer.routed(to_client(0), CloseReceiver(), fin=True)
    assert peer.events() == [Readable(ENTRYPOINT)]
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert peer.events() == [
        Readable(from_client(1)),
        ReceiverEnded(from_client(2), End.CANCELLED),
        SenderEnded(to_client(0), End.RECEIVER_CLOSED),
    ]


def test_a_message_creates_a_half_for_each_attachment() -> None:
    """AQ-CHAN-3: a receiver or a sender, as its id says."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, from_client(1), to_client(0)))
    assert peer.core.leftovers()[1:3] == ["client#1>: receiver open", "client#0<: sender open"]


def test_an_ignored_message_creates_no_halves() -> None:
    """AQ-CHAN-3: the receiver closed, but waits for an announcement."""
    peer = server_core()
    peer.datagram_to(ENTRYPOINT, plain(0, b"x"))
    peer.core.close(ENTRYPOINT, peer.now)
    peer.routed(ENTRYPOINT, carrier(0, from_client(1)))
    assert peer.core.leftovers()[0] == "entrypoint: receiver closing"
    assert peer.core.channel_count == 1


# -- routes ----------------------------------------------------------------------------------------


def test_a_route_to_an_unknown_channel_of_the_peer_creates_it() -> None:
    """AQ-ROUTE-1: in streams and in datagrams, receivers and senders."""
    peer = server_core()
    peer.routed(from_client(7))
    peer.datagram_to(from_client(8), plain(0))
    peer.routed(to_client(9), fin=True)
    assert [line for line in peer.core.leftovers() if "stream" not in line] == [
        "entrypoint: receiver open",
        "client#7>: receiver open",
        "client#8>: receiver open",
        "client#9<: sender open",
    ]
    assert peer.events() == []


@pytest.mark.parametrize("channel", [from_client(7), to_client(7)])
def test_a_half_created_by_a_route_answers_with_a_route(channel: int) -> None:
    """AQ-ROUTE-2."""
    peer = server_core()
    peer.routed(channel, fin=True)
    peer.wait(0.0099)
    assert peer.said() == []
    peer.wait(0.0002)
    assert peer.said() == [RouteTo(channel)]
    peer.wait(5)
    assert peer.said() == []


def test_a_half_that_has_sent_a_frame_sends_no_further_route() -> None:
    """AQ-ROUTE-2: any sequence begins with ROUTE_TO."""
    peer = server_core()
    peer.routed(to_client(7), fin=True)
    peer.routed(ENTRYPOINT, carrier(0, to_client(7)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.core.send(to_client(7), b"x", peer.now)
    peer.wait(1)
    assert len(peer.about(to_client(7))) == 1


def test_a_sender_created_by_a_route_and_closed_at_once_answers_with_a_route() -> None:
    """AQ-ROUTE-2."""
    peer = server_core()
    peer.routed(to_client(7), CloseReceiver(), fin=True)
    peer.wait(0.011)
    assert RouteTo(to_client(7)) in peer.said()


def test_a_route_to_an_own_channel_that_never_existed_is_answered_with_forget() -> None:
    """AQ-ROUTE-3: the rest of the sequence is ignored, even if it is malformed."""
    peer = client_core()
    stream = peer.routed(to_client(3), plain(0, b"x"), plain(0, b"x"))
    assert peer.said() == [RouteTo(to_client(3)), ForgetChannel()]
    peer.write(stream, b"\xff\xff", fin=True)
    peer.datagram_to(to_client(4), FinishSender(3), SentUnreliable(3))
    assert peer.said() == [RouteTo(to_client(4)), ForgetChannel()]
    peer.assert_alive()
    assert peer.core.leftovers() == ["entrypoint: sender open"]


def test_a_route_to_an_ended_channel_is_ignored() -> None:
    """AQ-ROUTE-4: whichever side created it, with the rest of the sequence.

    A FORGET_CHANNEL that answers it comes later (AQ-ROUTE-5).
    """
    pair = Pair()
    ours, theirs = pair.give_receiver(), pair.give_sender()
    pair.client.finish(ours, pair.now)
    pair.server.finish(theirs, pair.now)
    pair.wait(0.1)
    pair.forget_events()
    for core in (pair.client, pair.server):
        count = core.channel_count
        for at, channel in enumerate((ours, theirs)):
            core.handle_stream_data(1000 + at, RouteTo(channel).encode() + b"\xff", False, pair.now)
            core.handle_datagram(RouteTo(channel).encode() + plain(0).encode(), pair.now)
        assert core.channel_count == count
        assert core.poll_actions() == []
        assert core.poll_events() == []


def test_frames_on_a_stream_of_an_ended_channel_are_ignored() -> None:
    """AQ-ROUTE-4."""
    peer = server_core()
    stream = peer.routed(ENTRYPOINT, plain(0, b"x"))
    peer.core.close(ENTRYPOINT, peer.now)
    peer.more(stream, plain(0, b"x"), plain(5, b"x" * 10), FinishSender(1), CancelSender())
    peer.write(stream, b"\xff\xff\xff", fin=True)
    peer.assert_alive()
    assert peer.core.leftovers() == []


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", list(Side))
def test_channels_are_created_up_to_the_limit_of_the_peer(side: Side) -> None:
    """AQ-LIMIT-4: one that ends makes room for another."""
    peer = RawPeer(side, limits=replace(WIDE, max_channels=3))
    on = ENTRYPOINT
    if side == Side.SERVER:
        on = to_client(0)
        peer.routed(ENTRYPOINT, carrier(0, on))
        peer.core.take(ENTRYPOINT, 1, peer.now)
    first, *_ = attached(peer, GIVE_RECEIVER, GIVE_RECEIVER, on=on)
    with pytest.raises(LocalProtocolError, match="AQ-LIMIT-4"):
        attached(peer, GIVE_RECEIVER, GIVE_SENDER, on=on)
    attached(peer, GIVE_SENDER, on=on)
    with pytest.raises(LocalProtocolError, match="AQ-LIMIT-4"):
        attached(peer, GIVE_RECEIVER, on=on)
    peer.routed(on, AckReliable(((0, 2),)))
    peer.routed(first, CloseReceiver(), fin=True)
    attached(peer, GIVE_SENDER, on=on)


def test_the_entrypoint_of_the_peer_does_not_count() -> None:
    """AQ-LIMIT-4: its end makes no room for other channels."""
    peer = server_core(limits=replace(WIDE, max_channels=2))
    peer.routed(ENTRYPOINT, carrier(0, to_client(0)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.core.close(ENTRYPOINT, peer.now)
    attached(peer, GIVE_RECEIVER, GIVE_SENDER, on=to_client(0))
    with pytest.raises(LocalProtocolError, match="AQ-LIMIT-4"):
        attached(peer, GIVE_SENDER, on=to_client(0))


@pytest.mark.parametrize("routed", [True, False])
def test_twice_the_allowed_channels_close_the_connection(routed: bool) -> None:
    """AQ-LIMIT-4: created by routes or attachments; ended ones do not count."""
    config = Config(limits=Limits(max_channels=INITIAL_LIMITS.max_channels + 10))
    peer = server_core(config)
    peer.routed(from_client(1), CancelSender(), fin=True)
    peer.routed(ENTRYPOINT, carrier(0, from_client(1)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert peer.core.channel_count == 1
    stream = peer.routed(ENTRYPOINT)

    def one_more(number: int) -> None:
        if routed:
            peer.routed(from_client(100 + number), fin=True)
        else:
            peer.more(stream, carrier(1 + number, from_client(100 + number)))

    for number in range(2 * config.limits.max_channels):
        one_more(number)
    peer.assert_alive()
    one_more(9_999)
    peer.assert_closed(CloseCode.LIMIT_EXCEEDED, "AQ-LIMIT-4")


@pytest.mark.parametrize(
    "ending", [(FinishSender(0),), (CancelSender(),), (plain(0, b"x"), FinishSender(1))]
)
def test_ended_channels_do_not_raise_the_number_of_allowed_channels(
    ending: tuple[Frame, ...],
) -> None:
    """AQ-LIMIT-4: a channel is counted off once, also if its last stream ends after it."""
    allowed = 2 * INITIAL_LIMITS.max_channels
    peer = server_core(Config(limits=INITIAL_LIMITS))
    stream = peer.routed(ENTRYPOINT)
    for number in range(300):
        channel = from_client(1 + number)
        peer.more(stream, carrier(number, channel))
        peer.core.take(ENTRYPOINT, 1, peer.now)
        peer.routed(channel, *ending, fin=True)
        peer.core.take(channel, 1, peer.now)
    assert peer.core.channel_count == 1
    assert not [text for text in peer.core.leftovers() if "a count of" in text]
    for number in range(allowed):
        peer.routed(from_client(1_000 + number), fin=True)
    peer.assert_alive()
    peer.routed(from_client(9_999), fin=True)
    peer.assert_closed(CloseCode.LIMIT_EXCEEDED, "AQ-LIMIT-4")


def test_a_channel_that_ended_on_the_wire_makes_room_before_it_is_taken() -> None:
    """AQ-LIMIT-4: an honest peer may make another one when it has seen CLOSE_RECEIVER."""
    allowed = INITIAL_LIMITS.max_channels
    peer = server_core(Config(limits=INITIAL_LIMITS))
    stream = peer.routed(ENTRYPOINT)
    for index in range(1, 3 * allowed + 1):
        peer.more(stream, carrier(index - 1, from_client(index)))
        peer.routed(from_client(index), plain(0), FinishSender(1), fin=True)
    peer.assert_alive()
    over = [CloseReceiver() in peer.said_about(from_client(i)) for i in range(1, 3 * allowed + 1)]
    assert over == [True] * allowed + [False] * 2 * allowed
    peer.core.take(ENTRYPOINT, allowed + 5, peer.now)
    for index in range(1, allowed + 6):
        peer.core.take(from_client(index), 9, peer.now)
        assert CloseReceiver() in peer.said_about(from_client(index))


def test_a_peer_may_use_the_initial_number_of_channels_whatever_was_stated() -> None:
    """AQ-LIMIT-2."""
    peer = server_core(Config(limits=Limits(max_channels=1)))
    for index in range(1, INITIAL_LIMITS.max_channels + 1):
        peer.routed(from_client(index), fin=True)
    peer.assert_alive()


# -- handles that are never taken ------------------------------------------------------------------


def dropped_by_close(pair: Pair) -> None:
    pair.server.close(ENTRYPOINT, pair.now)


def dropped_by_cancel(pair: Pair) -> None:
    pair.client.cancel(ENTRYPOINT, pair.now)


@pytest.mark.parametrize("drop", [dropped_by_close, dropped_by_cancel])
def test_halves_in_dropped_messages_are_ended(
    drop: object,
) -> None:
    """AQ-CLOSE-4: receivers are closed and senders cancelled, nested ones included."""
    pair = Pair()
    there, back = pair.client.send_message(
        ENTRYPOINT, b"", pair.now, attach=[GIVE_RECEIVER, GIVE_SENDER]
    ).channels
    inner = pair.client.send_message(there, b"", pair.now, attach=[GIVE_RECEIVER]).channels[0]
    pair.client.send(inner, b"x", pair.now)
    pair.wait(0.1)
    assert pair.server.channel_count == 4
    pair.forget_events()
    assert callable(drop)
    drop(pair)
    pair.wait(0.1)
    ends = {e.channel: e for e in pair.at_client() if isinstance(e, SenderEnded | ReceiverEnded)}
    assert ends[there] == SenderEnded(there, End.RECEIVER_CLOSED)
    assert ends[inner] == SenderEnded(inner, End.RECEIVER_CLOSED)
    assert ends[back] == ReceiverEnded(back, End.CANCELLED)
    assert pair.client.leftovers() == pair.server.leftovers() == []


def test_a_channel_attached_to_itself_affects_no_other() -> None:
    """AQ-CLOSE-4: it can never be taken, and dropping it terminates."""
    peer = server_core()
    loop = [from_client(1), from_client(2)]
    peer.routed(ENTRYPOINT, carrier(0, from_client(3)))
    peer.routed(loop[0], carrier(0, loop[1]))
    peer.routed(loop[1], carrier(0, loop[0]))
    peer.routed(from_client(3), plain(0, b"x"))
    peer.assert_alive()
    peer.routed(loop[0], ForgetChannel(), fin=True)
    peer.core.close(ENTRYPOINT, peer.now)
    peer.assert_alive()
    assert not any("receiver open" in line for line in peer.core.leftovers())


# -- forgetting ------------------------------------------------------------------------------------


def test_a_forgotten_receiver_ends_at_once() -> None:
    """AQ-FORGET-1: its queue is dropped, its stream is reset, and nothing more is sent."""
    peer = server_core()
    peer.routed(from_client(1), plain(0, b"x"), SentUnreliable(3))
    peer.wait(0.02)
    peer.said()
    assert peer.core.held_bytes == 1
    peer.routed(from_client(1), ForgetChannel(), fin=True)
    assert peer.core.held_bytes == 0
    assert peer.said() == []
    assert [seen.reset for seen in peer.about(from_client(1))] == [StreamCode.FORGOTTEN]
    peer.wait(5)
    assert peer.said() == []
    assert peer.core.channel_count == 1


@pytest.mark.parametrize("ending", ["open", "finished", "cancelled"])
def test_a_forgotten_sender_still_processes_the_acks_that_were_overtaken(ending: str) -> None:
    """AQ-FORGET-5: so no message that arrived is reported lost."""
    peer = server_core()
    channel = to_client(0)
    peer.routed(ENTRYPOINT, carrier(0, channel))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.core.send(channel, b"one", peer.now)
    peer.core.send(channel, b"two", peer.now)
    if ending == "finished":
        peer.core.finish(channel, peer.now)
    elif ending == "cancelled":
        peer.core.cancel(channel, peer.now)
    peer.poll()
    peer.events()
    peer.routed(channel, ForgetChannel(), fin=True)
    before = peer.said_about(channel)
    with pytest.raises(ReceiverClosed if ending == "open" else ChannelClosed):
        peer.core.send(channel, b"three", peer.now)
    peer.core.finish(channel, peer.now)
    peer.core.cancel(channel, peer.now)
    peer.routed(channel, ForgetChannel(), fin=True)
    peer.wait(9)
    assert peer.events() == []
    peer.routed(channel, AckReliable(((0, 2),)), Dequeued(3), CloseReceiver(), fin=True)
    end = {"open": End.RECEIVER_CLOSED, "finished": End.FINISHED, "cancelled": End.CANCELLED}
    assert peer.events() == [Delivered(channel, True, ((0, 2),)), SenderEnded(channel, end[ending])]
    assert peer.said_about(channel) == before
    assert peer.core.next_timer() is None
    assert peer.core.channel_count == 1


@pytest.mark.parametrize("mode", list(Mode))
def test_a_forgotten_sender_refuses_messages_in_every_mode(mode: Mode) -> None:
    """AQ-FORGET-5."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, to_client(0)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.core.set_mode(to_client(0), mode)
    peer.core.send(to_client(0), b"one", peer.now)
    send = peer.core.plain_sender(to_client(0))
    peer.routed(to_client(0), ForgetChannel(), fin=True)
    before = peer.said_about(to_client(0)), list(peer.datagrams)
    with pytest.raises(ReceiverClosed):
        send(b"two", peer.now)
    peer.wait(1)
    assert (peer.said_about(to_client(0)), peer.datagrams) == before


def test_a_forgotten_sender_ends() -> None:
    """AQ-FORGET-5: its messages are undelivered, and their channels lost (AQ-LIN-3)."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, to_client(0)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    (ours,) = attached(peer, GIVE_RECEIVER, on=to_client(0))
    peer.core.send(ours, b"x", peer.now)
    peer.poll()
    peer.events()
    peer.routed(to_client(0), ForgetChannel(), fin=True)
    assert [seen.reset for seen in peer.about(to_client(0))] == [StreamCode.FORGOTTEN]
    peer.wait(10)
    assert peer.events() == [
        SenderEnded(to_client(0), End.LOST),
        SenderEnded(ours, End.LOST, (to_client(0),)),
    ]
    assert forgotten(peer, ours) == 1
    assert peer.core.channel_count == 1


def test_a_forgotten_half_has_no_timers() -> None:
    """AQ-FORGET-1: neither for acks and deadlines, nor for announcements and routes."""
    peer = server_core()
    peer.routed(from_client(1), plain(0, b"x"), SentUnreliable(3))
    peer.routed(to_client(1))
    assert peer.core.next_timer() is not None
    for channel in (from_client(1), to_client(1)):
        peer.routed(channel, ForgetChannel(), fin=True)
    assert peer.core.next_timer() is None


def test_halves_in_the_queue_of_a_forgotten_receiver_are_ended() -> None:
    """AQ-FORGET-1 and AQ-CLOSE-4."""
    peer = server_core()
    peer.routed(from_client(1), carrier(0, from_client(2), to_client(0)))
    peer.routed(from_client(1), ForgetChannel(), fin=True)
    assert peer.said_about(from_client(2)) == [CloseReceiver()]
    assert peer.said_about(to_client(0)) == [CancelSender()]


def test_forget_is_sent_at_most_once_a_second_for_a_channel() -> None:
    """AQ-FORGET-2."""
    peer = client_core()
    for _ in range(3):
        peer.routed(to_client(3), fin=True)
        peer.routed(to_client(4), fin=True)
    assert forgotten(peer, to_client(3)) == forgotten(peer, to_client(4)) == 1
    peer.now += 0.99
    peer.routed(to_client(3), fin=True)
    assert forgotten(peer, to_client(3)) == 1
    peer.now += 0.02
    peer.routed(to_client(3), fin=True)
    peer.routed(to_client(3), fin=True)
    assert forgotten(peer, to_client(3)) == 2


def test_a_queue_that_ended_normally_survives_a_forget() -> None:
    """AQ-FORGET-3."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, from_client(1)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.routed(from_client(1), plain(0, b"delivered"), FinishSender(1), fin=True)
    peer.routed(from_client(1), ForgetChannel(), fin=True)
    assert payloads(peer.core.take(from_client(1), 9, peer.now)) == [b"delivered"]
    assert ReceiverEnded(from_client(1), End.FINISHED) in peer.events()


def test_a_forgotten_unclaimed_channel_is_dropped_even_after_a_finish() -> None:
    """AQ-FORGET-3: it was not claimed."""
    peer = server_core()
    peer.routed(from_client(1), plain(0, b"x"), FinishSender(1), fin=True)
    assert peer.core.channel_count == 2
    peer.routed(from_client(1), ForgetChannel(), fin=True)
    assert peer.core.channel_count == 1
    assert peer.core.held_bytes == 0


def test_a_forgotten_channel_has_a_tombstone() -> None:
    """AQ-FORGET-4: a late message does not create it again."""
    peer = server_core()
    stream = peer.routed(from_client(1), plain(0, b"x"))
    peer.routed(from_client(1), ForgetChannel(), fin=True)
    peer.more(stream, plain(1, b"late"))
    peer.routed(from_client(1), plain(2, b"later"))
    peer.wait(5)
    peer.datagram_to(from_client(1), plain(0, b"latest"))
    assert peer.core.channel_count == 1
    assert peer.said_about(from_client(1)) == []


def test_a_forget_of_an_unknown_channel_leaves_a_tombstone() -> None:
    """AQ-FORGET-4: FORGET_CHANNEL overtook the other frames."""
    peer = server_core()
    peer.routed(from_client(1), ForgetChannel(), fin=True)
    peer.routed(from_client(1), plain(0, b"x"))
    assert peer.core.channel_count == 1


def test_a_handle_of_a_forgotten_channel_gets_the_loss() -> None:
    """AQ-FORGET-4: the carrier follows the forget, which an honest peer never sends."""
    peer = server_core()
    peer.routed(from_client(1), ForgetChannel(), fin=True)
    peer.routed(to_client(1), ForgetChannel(), fin=True)
    peer.routed(ENTRYPOINT, carrier(0, from_client(1), to_client(1)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert peer.events() == [
        Readable(ENTRYPOINT),
        ReceiverEnded(from_client(1), End.LOST),
        SenderEnded(to_client(1), End.RECEIVER_CLOSED),  # AQ-FORGET-5
    ]


def test_a_lost_own_channel_has_no_tombstone() -> None:
    """AQ-FORGET-4: further frames for it are answered with FORGET_CHANNEL again."""
    peer = client_core()
    (lost,) = attached(peer, GIVE_SENDER)
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    peer.now += 2
    before = forgotten(peer, lost)
    peer.routed(lost, plain(0, b"x"))
    assert forgotten(peer, lost) == before + 1


def test_forget_frames_that_a_peer_provokes_are_bounded() -> None:
    """AQ-LIMIT-7: within a second."""
    peer = client_core(Config(max_forgets=10))
    for index in range(10):
        peer.routed(to_client(index), fin=True)
    peer.now += 1.1
    for index in range(10):
        peer.routed(to_client(100 + index), fin=True)
    peer.assert_alive()
    peer.routed(to_client(999), fin=True)
    peer.assert_closed(CloseCode.LIMIT_EXCEEDED, "AQ-LIMIT-7")


def test_frames_for_recently_forgotten_channels_are_not_counted() -> None:
    """AQ-LIMIT-7: the peer wrote them before it could know."""
    peer = client_core(Config(max_forgets=2))
    channels = attached(peer, *[GIVE_SENDER] * 10)
    for channel in channels:
        peer.routed(channel)
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    for channel in channels:
        peer.routed(channel, plain(0, b"x"), fin=True)
    peer.assert_alive()
    assert [forgotten(peer, channel) for channel in channels] == [1] * 10


def test_losing_many_channels_at_once_is_not_counted_against_the_peer() -> None:
    """AQ-LIMIT-7 counts what a peer provokes; AQ-LIN-4 requires these."""
    peer = client_core(Config(max_forgets=4))
    channels = attached(peer, *[GIVE_RECEIVER] * 10)
    for channel in channels:
        peer.core.send(channel, b"x", peer.now)
    peer.poll()
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    peer.assert_alive()
    assert [forgotten(peer, channel) for channel in channels] == [1] * 10


# -- lineage ---------------------------------------------------------------------------------------


def test_messages_on_the_entrypoint_are_delivered_when_acked() -> None:
    """AQ-LIN-1."""
    peer = client_core()
    peer.core.send(ENTRYPOINT, b"", peer.now)
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)))
    assert peer.events() == [Delivered(ENTRYPOINT, True, ((0, 1),))]


def test_messages_on_a_channel_of_the_peer_are_delivered_when_acked() -> None:
    """AQ-LIN-1: a sender that was received is accessible."""
    peer = server_core()
    peer.routed(ENTRYPOINT, carrier(0, to_client(0)))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.core.send(to_client(0), b"", peer.now)
    peer.events()
    peer.routed(to_client(0), AckReliable(((0, 1),)))
    assert peer.events() == [Delivered(to_client(0), True, ((0, 1),))]


def test_acked_messages_of_a_pending_channel_are_delivered_once_it_is_accessible() -> None:
    """AQ-LIN-2 and AQ-LIN-6: two generations, and both number spaces."""
    peer = client_core()
    (child,) = attached(peer, GIVE_RECEIVER)
    unreliable = Attach(Give.RECEIVER, mode=Mode.UNRELIABLE)
    (grandchild,) = attached(peer, unreliable, on=child)
    peer.core.send(grandchild, b"x", peer.now)
    peer.core.send(grandchild, b"y" * 5000, peer.now)
    peer.wait(0.03)
    peer.routed(grandchild, AckReliable(((0, 1),)), AckNackUnreliable((1,)))
    peer.routed(child, AckReliable(((0, 1),)))
    assert peer.events() == []
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)))
    events = peer.events()
    assert sorted(events, key=str) == sorted(
        [
            Delivered(ENTRYPOINT, True, ((0, 1),)),
            Delivered(child, True, ((0, 1),)),
            Delivered(grandchild, True, ((0, 1),)),
            Delivered(grandchild, False, ((0, 1),)),
        ],
        key=str,
    )
    peer.core.send(grandchild, b"z" * 5000, peer.now)
    peer.routed(child)
    peer.events()


def test_a_channel_whose_carrier_is_nacked_is_lost() -> None:
    """AQ-LIN-3: its half ends at once, its streams are reset."""
    peer = client_core()
    ours, theirs = attached(peer, GIVE_RECEIVER, GIVE_SENDER)
    peer.core.send(ours, b"x", peer.now)
    peer.poll()
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    assert peer.events() == [
        Undelivered(ENTRYPOINT, True, ((0, 1),)),
        SenderEnded(ours, End.LOST, (ENTRYPOINT,)),
        ReceiverEnded(theirs, End.LOST, (ENTRYPOINT,)),
        SenderEnded(ENTRYPOINT, End.RECEIVER_CLOSED),
    ]
    assert [s.reset for s in peer.about(ours) if s.about != [ForgetChannel()]] == [
        StreamCode.FORGOTTEN
    ]
    peer.wait(1.1)
    assert peer.core.leftovers() == []


def test_a_channel_in_a_lost_datagram_is_lost() -> None:
    """AQ-LIN-3: and one in a datagram that arrived is not."""
    peer = client_core()
    peer.core.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    (lost,) = attached(peer, GIVE_RECEIVER)
    (found,) = attached(peer, GIVE_RECEIVER)
    peer.core.send(found, b"x", peer.now)
    peer.wait(0.03)
    peer.routed(found, AckReliable(((0, 1),)))
    peer.routed(ENTRYPOINT, AckNackUnreliable((0, 1, 1)))
    events = peer.events()
    assert SenderEnded(lost, End.LOST, (ENTRYPOINT,)) in events
    assert Delivered(found, True, ((0, 1),)) in events


def test_a_channel_is_lost_with_its_parent_even_if_its_carrier_was_acked() -> None:
    """AQ-LIN-3: so its acked messages are not delivered either (AQ-LIN-6)."""
    peer = client_core()
    (child,) = attached(peer, GIVE_RECEIVER)
    (grandchild,) = attached(peer, GIVE_RECEIVER, on=child)
    peer.core.send(grandchild, b"x", peer.now)
    peer.poll()
    peer.routed(child, AckReliable(((0, 1),)))
    peer.routed(grandchild, AckReliable(((0, 1),)))
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    events = peer.events()
    assert SenderEnded(grandchild, End.LOST, (child, ENTRYPOINT)) in events
    assert not any(isinstance(event, Delivered) for event in events)
    assert forgotten(peer, child) == forgotten(peer, grandchild) == 1


def test_a_lost_channel_is_forgotten_only_if_it_was_routed() -> None:
    """AQ-LIN-4."""
    peer = client_core()
    used, unused = attached(peer, GIVE_RECEIVER, GIVE_RECEIVER)
    peer.core.send(used, b"x", peer.now)
    peer.poll()
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    assert forgotten(peer, used) == 1
    assert forgotten(peer, unused) == 0


def test_a_lost_channel_that_the_peer_routed_first_is_forgotten() -> None:
    """AQ-LIN-4: its ROUTE_TO reached our half before the loss, so nothing else answers it."""
    peer = client_core()
    (theirs,) = attached(peer, GIVE_SENDER)
    peer.poll()
    stream = peer.routed(theirs)
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    peer.more(stream, plain(0, b"x"), fin=True)
    assert forgotten(peer, theirs) == 1


def test_a_lost_channel_is_forgotten_even_if_its_half_ended_normally() -> None:
    """AQ-LIN-4: and so are its children."""
    peer = client_core()
    ours, theirs = attached(peer, GIVE_RECEIVER, GIVE_SENDER)
    (child,) = attached(peer, GIVE_RECEIVER, on=ours)
    peer.core.send(child, b"x", peer.now)
    peer.core.finish(ours, peer.now)
    peer.routed(ours, AckReliable(((0, 1),)), CloseReceiver(), fin=True)
    peer.routed(theirs, FinishSender(0), fin=True)
    peer.poll()
    peer.events()
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    lost = [e.channel for e in peer.events() if isinstance(e, SenderEnded) and e.how is End.LOST]
    assert sorted(lost) == sorted([ours, child])
    assert [forgotten(peer, channel) for channel in (ours, theirs, child)] == [1, 1, 1]
    peer.wait(1.1)
    assert peer.core.leftovers() == []


def test_a_finished_sender_stays_until_its_lineage_is_known() -> None:
    """AQ-LIN-6: it ended on the wire, but the fate of its messages is open."""
    peer = client_core()
    (child,) = attached(peer, GIVE_RECEIVER)
    peer.core.send(child, b"x", peer.now)
    peer.core.finish(child, peer.now)
    peer.routed(child, AckReliable(((0, 1),)), CloseReceiver(), fin=True)
    assert peer.events() == []
    assert "client#1>: sender closed" in peer.core.leftovers()
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)))
    assert peer.events() == [
        Delivered(ENTRYPOINT, True, ((0, 1),)),
        Delivered(child, True, ((0, 1),)),
        SenderEnded(child, End.FINISHED),
    ]
    assert not any("client#1>" in line for line in peer.core.leftovers())


def test_both_sides_agree_that_a_channel_was_lost() -> None:
    """AQ-LIN-3 to AQ-LIN-4: the diagram of page 5, with two real sides."""
    pair = Pair()
    pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    (x,) = pair.client.send_message(ENTRYPOINT, b"", pair.now, attach=[GIVE_RECEIVER]).channels
    assert pair.to_server.drop_datagrams() == 1
    (y,) = pair.client.send_message(x, b"", pair.now, attach=[GIVE_RECEIVER]).channels
    pair.run()
    assert pair.server.channel_count == 3, "x is made by its ROUTE_TO, y by its carrier"
    pair.client.send(y, b"", pair.now)
    pair.wait(0.2)
    events = pair.at_client()
    assert SenderEnded(x, End.LOST, (ENTRYPOINT,)) in events
    assert SenderEnded(y, End.LOST, (x, ENTRYPOINT)) in events
    assert pair.at_server() == []
    assert pair.client.channel_count == pair.server.channel_count == 1


def test_a_message_that_attaches_an_own_channel_is_a_violation() -> None:
    """AQ-FRAME-21."""
    peer = client_core()
    (theirs,) = attached(peer, GIVE_SENDER)
    peer.routed(theirs, MessageFrame(0, (), carrier(0, from_client(5)).attachments, b""))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-FRAME-21")


def test_a_channel_that_ended_cannot_be_attached_again() -> None:
    """AQ-SEND-7: its tombstone shows that it existed."""
    peer = server_core()
    channel = from_client(1)
    stream = peer.routed(ENTRYPOINT, carrier(0, channel))
    peer.routed(channel, FinishSender(0), fin=True)
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert ReceiverEnded(channel, End.FINISHED) in peer.events()
    peer.more(stream, carrier(1, channel))
    peer.assert_closed(CloseCode.PROTOCOL_VIOLATION, "AQ-SEND-7")
