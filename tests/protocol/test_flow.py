"""Flow control: the window itself, and credit as both ends of a connection count it."""

from dataclasses import replace

import pytest

from aqueduct.errors import CloseCode, WouldBlock
from aqueduct.protocol.config import INITIAL_LIMITS, Config, Limits
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.events import Readable, Writable
from aqueduct.protocol.flow import FIRST_WINDOW, Window, WindowGrowth
from aqueduct.settings import KIB, MIB
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    Attachment,
    CloseReceiver,
    Dequeued,
    FinishSender,
    MessageFrame,
    SentUnreliable,
)
from tests.protocol.wires import (
    GIVE_RECEIVER,
    WIDE,
    Pair,
    RawPeer,
    carrier,
    client_core,
    credit,
    from_client,
    payloads,
    plain,
    server_core,
)

WINDOW = INITIAL_LIMITS.channel_window
"""The smallest window a receiver can have: it must always accept what is allowed initially."""

SMALL = Config(
    limits=Limits(
        channel_window=WINDOW, connection_window=INITIAL_LIMITS.connection_window, max_message=MIB
    )
)


def reported(peer: RawPeer, channel: int = ENTRYPOINT) -> int:
    """Return the bytes that the core has returned in DEQUEUED so far."""
    return sum(f.num_bytes for f in peer.said_about(channel) if isinstance(f, Dequeued))


# -- the window itself -----------------------------------------------------------------------------


def test_a_window_has_room_up_to_its_limit() -> None:
    """AQ-FLOW-2."""
    window = Window(100)
    window.outstanding = 60
    assert window.fits(40)
    assert not window.fits(41)
    assert window.limit - window.outstanding == 40


def test_an_empty_window_takes_one_message_of_any_size() -> None:
    """AQ-FLOW-3."""
    window = Window(100)
    assert window.fits(1000)
    window.outstanding = 1
    assert not window.fits(1000)


def test_a_window_that_shrank_has_no_room() -> None:
    window = Window(100)
    window.outstanding = 80
    window.limit = 50
    assert window.limit <= window.outstanding
    assert not window.fits(1)
    assert not window.fits(0)


# -- the sender's side -----------------------------------------------------------------------------


def test_a_message_counts_its_headers_attachments_and_payload_without_their_lengths() -> None:
    """AQ-FLOW-1: both sides count the same."""
    pair = Pair()
    before = credit(pair.client, ENTRYPOINT)
    headers = ((b"key", b"value"),)
    pair.client.send_message(
        ENTRYPOINT,
        b"payload",
        pair.now,
        headers=headers,
        attach=[Attach(Give.RECEIVER, headers=((b"", b"x"),))],
    )
    size = (1 + 3 + 1 + 5) + (1 + 1 + 1 + 1 + 1) + 7
    assert before - credit(pair.client, ENTRYPOINT) == size
    pair.run()
    assert pair.server.held_bytes == size
    pair.server.take(ENTRYPOINT, 1, pair.now)
    pair.wait(0.02)
    assert credit(pair.client, ENTRYPOINT) == before
    assert pair.server.held_bytes == 0


def test_a_sender_stops_at_the_channel_window() -> None:
    """AQ-FLOW-2."""
    peer = client_core(limits=replace(WIDE, channel_window=100))
    peer.core.send(ENTRYPOINT, b"x" * 60, peer.now)
    assert credit(peer.core, ENTRYPOINT) == 40
    with pytest.raises(WouldBlock):
        peer.core.send(ENTRYPOINT, b"x" * 41, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send_message(ENTRYPOINT, b"x" * 41, peer.now, headers=((b"", b""),))
    peer.core.send(ENTRYPOINT, b"x" * 40, peer.now)
    assert credit(peer.core, ENTRYPOINT) == 0


def test_a_sender_stops_at_the_connection_window_of_all_channels() -> None:
    """AQ-FLOW-2."""
    peer = client_core(limits=replace(WIDE, connection_window=100))
    other = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER]).channels[0]
    peer.core.send(ENTRYPOINT, b"x" * 50, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(other, b"x" * 50, peer.now)
    assert credit(peer.core, other) == 100 - 50 - 2
    peer.core.send(other, b"x" * 48, peer.now)


def test_a_message_that_would_block_changes_no_state() -> None:
    """AQ-FLOW-2: its channels are not created either."""
    peer = client_core(limits=replace(WIDE, channel_window=100))
    peer.core.send(ENTRYPOINT, b"x" * 100, peer.now)
    peer.said()
    before = peer.core.leftovers()
    with pytest.raises(WouldBlock):
        peer.core.send_message(ENTRYPOINT, b"y", peer.now, attach=[GIVE_RECEIVER])
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)), Dequeued(100), fin=True)
    sent = peer.core.send_message(ENTRYPOINT, b"y", peer.now, attach=[GIVE_RECEIVER])
    assert (sent.number, sent.channels) == (1, (from_client(1),))
    assert len(before) == 2


def test_one_message_larger_than_the_window_is_sent_alone() -> None:
    """AQ-FLOW-3: on its channel, and on the connection."""
    for limits in (replace(WIDE, channel_window=100), replace(WIDE, connection_window=100)):
        peer = client_core(limits=limits)
        assert peer.core.send(ENTRYPOINT, b"x" * 500, peer.now) == 0
        with pytest.raises(WouldBlock):
            peer.core.send(ENTRYPOINT, b"x", peer.now)
        peer.routed(ENTRYPOINT, AckReliable(((0, 1),)), Dequeued(500))
        peer.core.send(ENTRYPOINT, b"x", peer.now)
        with pytest.raises(WouldBlock):
            peer.core.send(ENTRYPOINT, b"x" * 500, peer.now)


def test_a_blocked_sender_is_woken_when_there_is_room() -> None:
    """AQ-FLOW-6: DEQUEUED returns credit."""
    peer = client_core(limits=replace(WIDE, channel_window=100))
    peer.core.send(ENTRYPOINT, b"x" * 100, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(ENTRYPOINT, b"x" * 30, peer.now)
    stream = peer.routed(ENTRYPOINT, Dequeued(29))
    assert peer.events() == []
    peer.more(stream, Dequeued(1))
    assert peer.events() == [Writable(ENTRYPOINT)]
    peer.core.send(ENTRYPOINT, b"x" * 30, peer.now)


def test_senders_blocked_by_the_connection_window_are_woken_oldest_first() -> None:
    """AQ-FLOW-6."""
    peer = client_core(limits=replace(WIDE, connection_window=100))
    attach = [GIVE_RECEIVER] * 2
    first, second = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=attach).channels
    peer.core.send(ENTRYPOINT, b"x" * 96, peer.now)
    for channel in (second, first):
        with pytest.raises(WouldBlock):
            peer.core.send(channel, b"x" * 20, peer.now)
    peer.routed(ENTRYPOINT, Dequeued(50))
    assert peer.events() == [Writable(second), Writable(first)]


def test_a_blocked_sender_that_was_finished_is_not_woken() -> None:
    """AQ-SEND-1: it can send no more."""
    for end in ("finish", "cancel"):
        peer = client_core(limits=replace(WIDE, channel_window=100))
        peer.core.send(ENTRYPOINT, b"x" * 100, peer.now)
        with pytest.raises(WouldBlock):
            peer.core.send(ENTRYPOINT, b"x", peer.now)
        getattr(peer.core, end)(ENTRYPOINT, peer.now)
        peer.routed(ENTRYPOINT, Dequeued(100))
        assert Writable(ENTRYPOINT) not in peer.events()


PIECE = 64 * KIB


class LongPath:
    """A sender that sends what it may, to a receiver whose credit comes back at some pace."""

    def __init__(self, rtt: float, window: int = 8 * MIB, least: float | None = None) -> None:
        limits = replace(WIDE, channel_window=window, connection_window=64 * MIB)
        self.peer = client_core(limits=limits)
        self.peer.core.handle_rtt(rtt, least)
        self.outstanding = 0
        self._stream: int | None = None

    def fill(self) -> int:
        """Send until the window is full; return the bytes in flight."""
        while True:
            try:
                self.peer.core.send(ENTRYPOINT, bytes(PIECE), self.peer.now)
            except WouldBlock:
                return self.outstanding
            self.outstanding += PIECE

    def round(self, seconds: float) -> int:
        """Return all credit over some seconds while the sender goes on; return what is used."""
        for _ in range(16):
            self.peer.wait(seconds / 16)
            size = self.outstanding // 16
            self.outstanding -= size
            if self._stream is None:
                self._stream = self.peer.routed(ENTRYPOINT, Dequeued(size))
            else:
                self.peer.more(self._stream, Dequeued(size))
            used = self.fill()
        return used


def test_a_sender_uses_more_of_the_window_on_a_long_path_up_to_what_the_peer_allows() -> None:
    path = LongPath(rtt=0.2)
    assert path.fill() == FIRST_WINDOW
    used = [path.round(0.2) for _ in range(12)]
    assert sorted(used) == used
    assert used[-1] == 8 * MIB


def test_a_slow_receiver_gets_no_more_than_the_first_window() -> None:
    path = LongPath(rtt=0.2)
    path.fill()
    assert [path.round(1.0) for _ in range(12)] == [FIRST_WINDOW] * 12


def test_a_fast_receiver_nearby_gets_no_more_than_the_first_window() -> None:
    path = LongPath(rtt=0.001)
    path.fill()
    assert [path.round(0.001) for _ in range(40)] == [FIRST_WINDOW] * 40


def test_round_trips_that_queues_make_long_do_not_widen_the_window() -> None:
    path = LongPath(rtt=0.02, least=0.002)
    path.fill()
    assert [path.round(0.02) for _ in range(12)] == [FIRST_WINDOW] * 12


def test_a_burst_of_credit_does_not_widen_the_window() -> None:
    path = LongPath(rtt=0.003)
    path.fill()
    for _ in range(20):
        assert path.round(0.005) == FIRST_WINDOW
        assert path.round(0.5) == FIRST_WINDOW


def test_credit_of_other_channels_does_not_widen_the_window_of_a_slow_one() -> None:
    growth = WindowGrowth(8 * MIB)
    growth.wait(1)
    for step in range(100):
        growth.add(2, FIRST_WINDOW, step * 0.01, 0.02)
        growth.wait(1)
    assert growth.window == FIRST_WINDOW


def test_a_channel_that_gets_no_credit_does_not_keep_others_from_a_wider_window() -> None:
    growth = WindowGrowth(8 * MIB)
    growth.wait(1)
    for step in range(100):
        growth.add(2, FIRST_WINDOW, step * 0.01, 0.02)
        growth.wait(2)
    assert growth.window == 8 * MIB


def test_a_path_of_unknown_length_keeps_the_first_window() -> None:
    path = LongPath(rtt=0.0)
    path.fill()
    assert [path.round(0.2) for _ in range(5)] == [FIRST_WINDOW] * 5


def test_a_sender_that_never_waits_for_its_window_uses_no_more_of_it() -> None:
    path = LongPath(rtt=0.2)
    path.outstanding = 4 * PIECE
    for _ in range(4):
        path.peer.core.send(ENTRYPOINT, bytes(PIECE), path.peer.now)
    stream = path.peer.routed(ENTRYPOINT, Dequeued(PIECE))
    for _ in range(3):
        path.peer.wait(0.1)
        path.peer.more(stream, Dequeued(PIECE))
    assert path.peer.core._context.credit.growth.window == FIRST_WINDOW


def test_a_window_below_the_first_one_is_used_at_once_and_not_exceeded() -> None:
    """AQ-FLOW-2."""
    path = LongPath(rtt=0.2, window=4 * PIECE)
    assert path.fill() == 4 * PIECE
    assert max(path.round(0.2) for _ in range(5)) <= 4 * PIECE


def test_credit_of_a_nacked_datagram_is_returned() -> None:
    """AQ-FLOW-6: credit of an acked one is returned when it is dequeued."""
    peer = client_core(limits=replace(WIDE, channel_window=100))
    peer.core.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    for size in (10, 20, 30):
        peer.core.send(ENTRYPOINT, b"x" * size, peer.now)
    peer.wait(0.03)
    stream = peer.routed(ENTRYPOINT, AckNackUnreliable((1, 1, 1)))
    assert credit(peer.core, ENTRYPOINT) == 100 - 10 - 30
    peer.more(stream, Dequeued(40))
    assert credit(peer.core, ENTRYPOINT) == 100


def test_all_outstanding_credit_is_returned_when_the_sender_ends() -> None:
    """AQ-FLOW-6."""
    peer = client_core(limits=replace(WIDE, connection_window=100))
    other = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER]).channels[0]
    peer.core.send(other, b"x" * 80, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(ENTRYPOINT, b"x" * 80, peer.now)
    peer.routed(other, AckReliable(((0, 1),)), CloseReceiver(), fin=True)
    assert Writable(ENTRYPOINT) in peer.events()
    assert credit(peer.core, ENTRYPOINT) == 98


def lost_with_bytes() -> tuple[RawPeer, int]:
    """Return a client with 90 of 100 bytes on a lost channel, and a blocked channel."""
    peer = client_core(limits=replace(WIDE, connection_window=100))
    peer.core.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    lost, other = (
        peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER]).channels[0]
        for _ in range(2)
    )
    peer.core.send(lost, b"x" * 90, peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(other, b"y" * 50, peer.now)
    peer.wait(0.03)
    peer.events()
    peer.routed(ENTRYPOINT, AckNackUnreliable((0, 1, 1)))
    return peer, other


def test_credit_of_a_lost_channel_is_returned_a_second_after_the_forget() -> None:
    """AQ-FLOW-8: the peer may still hold them; blocked senders are woken then."""
    peer, other = lost_with_bytes()
    assert Writable(other) not in peer.events()
    assert credit(peer.core, other) < 50
    peer.wait(0.99)
    assert Writable(other) not in peer.events()
    peer.wait(0.02)
    assert peer.events() == [Writable(other)]
    peer.core.send(other, b"y" * 50, peer.now)


def test_written_off_bytes_are_dropped_at_the_end_of_the_connection() -> None:
    """AQ-FLOW-8 and AQ-CONN-7."""
    peer, _ = lost_with_bytes()
    assert any("outstanding" in line for line in peer.core.leftovers())
    peer.core.handle_connection_lost(0, "", True, peer.now)
    assert peer.core.leftovers() == []
    assert peer.core.next_timer() is None


def test_returning_more_credit_than_is_outstanding_is_a_violation() -> None:
    """AQ-FLOW-5."""
    peer = client_core()
    peer.core.send(ENTRYPOINT, b"x" * 10, peer.now)
    stream = peer.routed(ENTRYPOINT, Dequeued(4), Dequeued(6))
    peer.assert_alive()
    peer.more(stream, Dequeued(1))
    peer.assert_closed(CloseCode.FLOW_CONTROL, "AQ-FLOW-5")


def test_nacking_bytes_that_were_dequeued_is_a_violation() -> None:
    """AQ-FLOW-5: bytes that were taken belong to a message that arrived."""
    peer = client_core()
    peer.core.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    peer.core.send(ENTRYPOINT, b"x" * 10, peer.now)
    peer.wait(0.03)
    peer.routed(ENTRYPOINT, Dequeued(1), AckNackUnreliable((0, 1)))
    peer.assert_closed(CloseCode.FLOW_CONTROL, "AQ-FLOW-5")


# -- the receiver's side ---------------------------------------------------------------------------


def test_a_peer_that_exceeds_the_channel_window_is_closed() -> None:
    """AQ-FLOW-2: exactly the window is allowed; taking makes room once DEQUEUED was sent."""
    peer = server_core(SMALL)
    stream = peer.routed(ENTRYPOINT, plain(0, b"x" * (WINDOW - 9)), plain(1, b"x" * 9))
    peer.core.take(ENTRYPOINT, 1, peer.now)
    peer.wait(0.02)
    assert reported(peer) == WINDOW - 9
    peer.more(stream, plain(2, b"x" * (WINDOW - 9)))
    peer.assert_alive()
    peer.more(stream, plain(3, b"x"))
    peer.assert_closed(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")


def test_headers_and_attachments_count_against_the_window_too() -> None:
    """AQ-FLOW-1."""
    size = MessageFrame(0, ((b"k", b"v"),), (Attachment(from_client(1), ()),), b"").size
    for over in (0, 1):
        peer = server_core(SMALL)
        stream = peer.routed(ENTRYPOINT, plain(0, b"x" * (WINDOW - size + over)))
        peer.more(stream, MessageFrame(1, ((b"k", b"v"),), (Attachment(from_client(1), ()),), b""))
        if over:
            peer.assert_closed(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")
        else:
            peer.assert_alive()


def test_a_peer_that_exceeds_twice_the_connection_window_is_closed() -> None:
    """AQ-FLOW-8: the sender may have written off bytes of a lost channel."""
    peer = server_core(SMALL)
    channels = [from_client(index) for index in range(1, 33)]
    for channel in channels:
        peer.routed(channel, plain(0, b"x" * WINDOW))
    peer.assert_alive()
    assert peer.core.held_bytes == 2 * INITIAL_LIMITS.connection_window
    peer.routed(from_client(33), plain(0, b"x"))
    peer.assert_closed(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")


def test_one_message_larger_than_the_window_is_received_if_the_queue_is_empty() -> None:
    """AQ-FLOW-3."""
    peer = server_core(SMALL)
    stream = peer.routed(ENTRYPOINT, plain(0, b"x" * (WINDOW + 1)))
    peer.assert_alive()
    peer.more(stream, plain(1, b"x"))
    peer.assert_closed(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")

    peer = server_core(SMALL)
    peer.routed(ENTRYPOINT, plain(0, b"x"), plain(1, b"x" * (WINDOW + 1)))
    peer.assert_closed(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")


def test_a_quarter_of_the_channel_window_is_reported_at_once() -> None:
    """AQ-FLOW-4."""
    peer = server_core(SMALL)
    quarter = WINDOW // 4
    peer.routed(ENTRYPOINT, plain(0, b"x" * (quarter - 1)), plain(1, b"x"), plain(2, b"x"))
    peer.wait(0.02)
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert reported(peer) == 0
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert reported(peer) == quarter


def test_a_quarter_of_the_first_window_is_reported_at_once_however_large_the_window_is() -> None:
    """AQ-FLOW-4: the sender may use no more than that."""
    peer = server_core(Config(limits=Limits(channel_window=64 * MIB)))
    quarter = FIRST_WINDOW // 4
    peer.routed(ENTRYPOINT, plain(0, b"x" * (quarter - 1)), plain(1, b"x"), plain(2, b"x"))
    peer.wait(0.02)
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert reported(peer) == 0
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert reported(peer) == quarter


def test_a_quarter_of_the_connection_window_is_reported_for_all_channels() -> None:
    """AQ-FLOW-4."""
    peer = server_core(replace(SMALL, limits=replace(SMALL.limits, channel_window=16 * MIB)))
    channels = [from_client(index) for index in range(1, 17)]
    for at, channel in enumerate(channels):
        peer.routed(ENTRYPOINT, carrier(at, channel))
        peer.core.take(ENTRYPOINT, 1, peer.now)
        peer.routed(channel, plain(0, b"x" * (16 * KIB)), plain(1, b"x"))
    peer.wait(0.02)
    for channel in channels[:-1]:
        peer.core.take(channel, 1, peer.now)
    assert [reported(peer, channel) for channel in channels] == [0] * 16
    peer.core.take(channels[-1], 1, peer.now)
    assert [reported(peer, channel) for channel in channels] == [16 * KIB] * 16


def test_credit_is_returned_soon_when_the_queue_is_empty() -> None:
    """AQ-FLOW-4."""
    peer = server_core(SMALL)
    peer.routed(ENTRYPOINT, plain(0, b"xyz"))
    peer.wait(0.02)
    peer.core.take(ENTRYPOINT, 1, peer.now)
    assert reported(peer) == 0
    peer.wait(0.0101)
    assert reported(peer) == 3


def test_a_finished_channel_is_closed_before_its_queue_is_taken() -> None:
    """AQ-FLOW-7: the sender's window is free for other channels; the bytes are still held."""
    peer = server_core(SMALL)
    peer.routed(ENTRYPOINT, plain(0, b"x" * 1000), FinishSender(1), fin=True)
    assert CloseReceiver() in peer.said_about(ENTRYPOINT)
    assert peer.core.held_bytes == 1000
    assert payloads(peer.core.take(ENTRYPOINT, 9, peer.now)) == [b"x" * 1000]
    assert peer.core.held_bytes == 0


def test_the_queues_of_finished_channels_are_bounded_by_the_connection_window() -> None:
    """AQ-FLOW-7: above it, CLOSE_RECEIVER waits until the queue was taken."""
    peer = server_core(SMALL)
    channels = [from_client(index) for index in range(1, 20)]
    for at, channel in enumerate(channels):
        peer.routed(ENTRYPOINT, carrier(at, channel))
        peer.core.take(ENTRYPOINT, 1, peer.now)
        peer.routed(channel, plain(0, b"x" * WINDOW), FinishSender(1), fin=True)
    closed = [CloseReceiver() in peer.said_about(channel) for channel in channels]
    assert closed == [True] * 16 + [False] * 3
    peer.core.take(channels[16], 1, peer.now)
    assert CloseReceiver() in peer.said_about(channels[16])
    assert CloseReceiver() not in peer.said_about(channels[17])


def test_empty_messages_cost_no_credit() -> None:
    """AQ-FLOW-9."""
    pair = Pair(server_config=SMALL)
    for _ in range(3):
        for _ in range(1000):
            pair.client.send(ENTRYPOINT, b"", pair.now)
        pair.run()
    assert pair.server.held_bytes == 0
    assert pair.at_server() == [Readable(ENTRYPOINT)]
    assert payloads(pair.server.take(ENTRYPOINT, 5000, pair.now)) == [b""] * 3000


def test_dropped_messages_return_their_credit() -> None:
    """AQ-FLOW-6: dropped by a closed receiver, and by a cancelled sender."""
    pair = Pair(server_config=SMALL)
    channel = pair.give_receiver()
    whole = credit(pair.client, ENTRYPOINT)
    pair.client.send(channel, b"x" * 1000, pair.now)
    pair.run()
    pair.server.close(channel, pair.now)
    pair.wait(0.1)
    assert pair.server.held_bytes == 0
    channel = pair.give_receiver(Mode.UNORDERED)
    pair.client.send(channel, b"x" * 1000, pair.now)
    pair.run()
    pair.client.cancel(channel, pair.now)
    pair.wait(0.1)
    assert pair.server.held_bytes == 0
    assert credit(pair.client, ENTRYPOINT) == whole


def test_datagrams_count_against_the_window() -> None:
    """AQ-FLOW-2."""
    peer = server_core(SMALL)
    for number in range(WINDOW // 1024):
        peer.datagram_to(ENTRYPOINT, plain(number, b"x" * 1024))
    peer.assert_alive()
    peer.routed(ENTRYPOINT, SentUnreliable(65))
    peer.wait(0.1)
    peer.assert_alive()
    peer.datagram_to(ENTRYPOINT, plain(65, b"x"))
    peer.assert_closed(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")


def test_an_empty_message_fits_beside_one_larger_than_the_window() -> None:
    """AQ-FLOW-3, AQ-FLOW-9: it needs no credit."""
    peer = server_core(Config(limits=INITIAL_LIMITS))
    large = INITIAL_LIMITS.max_message
    peer.routed(ENTRYPOINT, plain(1, b"x" * large), fin=True)
    peer.routed(ENTRYPOINT, plain(0), fin=True)
    assert peer.core.held_bytes == large


def test_both_sides_return_credit_of_a_lost_channel_a_second_after_the_forget() -> None:
    """AQ-FLOW-8: until then the peer may hold its bytes."""
    peer = client_core()
    channel = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER]).channels[0]
    room = credit(peer.core, ENTRYPOINT)
    peer.core.send(channel, b"x" * 1_000, peer.now)
    window = peer.core._context.credit.send_window
    before = window.outstanding
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    assert window.outstanding == 1_000 < before
    assert peer.core.leftovers() == []
    peer.core.handle_timer(peer.now + 0.5)
    assert window.outstanding == 1_000
    peer.core.handle_timer(peer.now + 1.0)
    assert window.outstanding == 0
    assert room > 0


# -- reserves --------------------------------------------------------------------------------------


def give_receivers(pair: Pair, count: int) -> list[int]:
    """Create channels from client to server."""
    attach = [GIVE_RECEIVER] * count
    channels = pair.client.send_message(ENTRYPOINT, b"", pair.now, attach=attach).channels
    pair.run()
    pair.server.take(ENTRYPOINT, 1, pair.now)
    pair.wait(0.02)
    return list(channels)


def fill(pair: Pair, channel: int, piece: bytes) -> int:
    """Send until there is no room; return how many bytes were sent."""
    sent = 0
    while True:
        try:
            pair.client.send(channel, piece, pair.now)
        except WouldBlock:
            pair.client.give_up(channel)
            pair.run()
            return sent
        sent += len(piece)


def reserving(reserve: int, pool: int, window: int = 1_000) -> Config:
    """Return a configuration with small windows, initial ones included."""
    limits = replace(
        INITIAL_LIMITS,
        channel_window=window,
        connection_window=window,
        channel_reserve=reserve,
        reserve_window=pool,
        max_message=10_000,
    )
    return Config(limits=limits, initial_limits=replace(limits, channel_reserve=0))


def test_unread_channels_do_not_block_other_channels() -> None:
    """AQ-FLOW-10: with the default limits."""
    pair = Pair()
    channels = give_receivers(pair, 240)
    unread, others = channels[:20], channels[20:]
    total = sum(fill(pair, channel, bytes(64 * 1024)) for channel in unread)
    assert 15 * MIB < total < 17 * MIB
    for channel in others:
        pair.client.send(channel, b"answer", pair.now)
    pair.run()
    for channel in others:
        assert payloads(pair.server.take(channel, 9, pair.now)) == [b"answer"]
    pair.wait(0.1)
    for channel in others:
        pair.client.send(channel, bytes(16 * 1024), pair.now)
    pair.run()
    assert sum(len(pair.server.take(channel, 9, pair.now)) for channel in others) == len(others)


def test_a_reserve_covers_its_bytes_and_then_the_window_counts() -> None:
    """AQ-FLOW-10."""
    config = reserving(100, 1_000)
    pair = Pair(config, config)
    first, second = give_receivers(pair, 2)
    assert credit(pair.client, first) == 1_000
    assert fill(pair, first, bytes(100)) == 1_000
    assert credit(pair.client, second) == 200  # the window has 100 left, the first's reserve apart
    assert fill(pair, second, bytes(50)) == 200
    third = give_receivers(pair, 1)[0]
    assert credit(pair.client, third) == 100
    with pytest.raises(WouldBlock):
        pair.client.send(third, bytes(101), pair.now)
    assert fill(pair, third, bytes(50)) == 100


def test_an_empty_message_does_not_wait_where_a_larger_one_fits_the_reserve() -> None:
    """AQ-FLOW-10: the smallest message that waits decides when its sender is woken."""
    config = reserving(100, 1_000)
    pair = Pair(config, config)
    first, second = give_receivers(pair, 2)
    pair.client.send(first, bytes(5_000), pair.now)  # AQ-FLOW-3: more than the window
    pair.client.send(second, bytes(50), pair.now)
    pair.client.send(second, b"", pair.now)
    pair.client.send(second, bytes(50), pair.now)
    with pytest.raises(WouldBlock):
        pair.client.send(second, b"x", pair.now)


def test_the_reserves_of_all_channels_are_bounded_together() -> None:
    """AQ-FLOW-10: above the reserve window they count against the connection window."""
    config = reserving(100, 250)
    pair = Pair(config, config)
    full, *others = give_receivers(pair, 6)
    assert fill(pair, full, bytes(1_000)) == 1_000
    sent = [fill(pair, channel, bytes(10)) for channel in others]
    assert sent == [200, 50, 0, 0, 0]  # there were 100 left in the window, 150 for reserves
    assert pair.client._context.credit.send_window.outstanding == 1_250


def test_a_peer_that_states_no_reserve_gets_none() -> None:
    """AQ-FLOW-10: to such a peer, using one is a violation."""
    peer = client_core(limits=replace(WIDE, connection_window=100))
    channels = peer.core.send_message(
        ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER] * 2
    ).channels
    before = peer.core._context.credit.send_window.outstanding
    peer.core.send(channels[0], bytes(100 - before), peer.now)
    with pytest.raises(WouldBlock):
        peer.core.send(channels[1], b"x", peer.now)


def test_bytes_sent_before_the_limits_arrive_count_against_them() -> None:
    """AQ-FLOW-10 and AQ-LIMIT-2."""
    config = reserving(100, 1_000)
    pair = Pair(config, config, accept=False)
    pair.client.send(ENTRYPOINT, bytes(300), pair.now)
    assert credit(pair.client, ENTRYPOINT) == 700
    pair.to_server.deliver()
    pair.server.accept((), pair.now)
    pair.run()
    window = pair.client._context.credit.send_window
    assert (window.outstanding, window.reserved, window.limit) == (300, 100, 1_100)
    pair.server.take(ENTRYPOINT, 1, pair.now)
    pair.wait(0.1)
    assert (window.outstanding, window.reserved, window.limit) == (0, 0, 1_000)


def test_a_message_larger_than_the_window_does_not_wait_for_the_reserves_of_others() -> None:
    """AQ-FLOW-3 and AQ-FLOW-10, and nothing in a reserve waits for such a message."""
    config = reserving(100, 1_000)
    pair = Pair(config, config)
    unread, large, late = give_receivers(pair, 3)
    pair.client.send(unread, b"unread", pair.now)
    pair.client.send(large, bytes(5_000), pair.now)
    pair.client.send(late, bytes(100), pair.now)
    with pytest.raises(WouldBlock):
        pair.client.send(late, b"x", pair.now)
    pair.run()
    for channel in (unread, large, late):
        assert len(pair.server.take(channel, 9, pair.now)) == 1


def test_a_peer_that_exceeds_its_reserves_is_closed() -> None:
    """AQ-FLOW-10 and AQ-FLOW-8: both windows at twice their values, and one reserve."""
    config = replace(reserving(100, 250), initial_limits=replace(INITIAL_LIMITS, max_message=1_000))
    config = replace(config, limits=replace(config.limits, connection_window=MIB, max_message=MIB))
    peer = server_core(config)
    twice = 2 * MIB
    for index in range(1, 33):
        peer.routed(from_client(index), plain(0, b"x" * WINDOW))
    peer.assert_alive()
    assert peer.core.held_bytes == twice
    held = []
    for index in range(33, 50):
        peer.routed(from_client(index), plain(0, b"x" * 100))
        held.append(peer.core.held_bytes)
    assert max(held) == twice + 2 * 250 + 100
    peer.assert_closed(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")


def test_reserves_are_returned_however_a_channel_ends() -> None:
    """AQ-FLOW-6 and AQ-FLOW-10."""
    config = reserving(100, 1_000)
    pair = Pair(config, config)
    taken, closed, cancelled, finished = give_receivers(pair, 4)
    for channel in (taken, closed, cancelled, finished):
        pair.client.send(channel, bytes(150), pair.now)
    pair.run()
    assert pair.client._context.credit.send_window.reserved == 400
    assert pair.server._context.credit.receive_window.reserved == 400
    pair.server.take(taken, 1, pair.now)
    pair.server.close(closed, pair.now)
    pair.client.cancel(cancelled, pair.now)
    pair.client.finish(finished, pair.now)
    pair.wait(0.1)
    for window in (
        pair.client._context.credit.send_window,
        pair.server._context.credit.receive_window,
    ):
        assert (window.outstanding, window.reserved, window.limit) == (0, 0, window.base)
