"""Memory bounds: a peer that sends too much is closed, or the memory held stays small."""

import gc
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest

from aqueduct.errors import CloseCode, LocalProtocolError, WouldBlock
from aqueduct.protocol.budget import AddressAccount, Budget
from aqueduct.protocol.config import COST_OF_STREAM, INITIAL_LIMITS, Config, Limits
from aqueduct.protocol.connection import Mode
from aqueduct.protocol.events import End, SenderEnded
from aqueduct.settings import KIB, MIB
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    AckVersion,
    Attachment,
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    Dequeued,
    FinishSender,
    ForgetChannel,
    MessageFrame,
    RouteTo,
    SentUnreliable,
    Version,
    message_head,
)
from aqueduct.wire.primitives import MAX_VARINT
from tests.protocol.wires import (
    GIVE_RECEIVER,
    GIVE_SENDER,
    HUGE,
    WIDE,
    Pair,
    RawPeer,
    carrier,
    client_core,
    encode,
    from_client,
    payloads,
    plain,
    server_core,
    to_client,
    to_server,
)

LIMIT = CloseCode.LIMIT_EXCEEDED
ROUTE = RouteTo(ENTRYPOINT).encode()
SMALL = Config(limits=INITIAL_LIMITS, max_ranges=100, max_remembered=100, max_unpacked=100)
FLOODS = 5
STEADY = 12_000
"""Bytes of growth per flood that count as noise. A flood makes thousands of objects."""


def held_after(flood: Callable[[], object], peer: RawPeer) -> int:
    """Return by how many bytes memory grew in a flood, after polling all actions and events."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        flood()
        peer.core.poll_actions()
        peer.core.poll_events()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def growth(flood: Callable[[range], object], peer: RawPeer, count: int = 2_000) -> int:
    """Return the smallest growth from one flood to the next, in bytes.

    A leak grows with every flood. What other threads of the test process allocate meanwhile, and
    tables that reach their final size late, show up in some of them.
    """
    held: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        for first in range(0, FLOODS * count, count):
            flood(range(first, first + count))
            peer.core.poll_actions()
            peer.core.poll_events()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
            if len(held) > 1 and held[-1] - held[-2] < STEADY:
                break
    finally:
        tracemalloc.stop()
    return min(after - before for before, after in pairwise(held))


def until_closed(peer: RawPeer, step: Callable[[int], object], limit: int) -> int:
    """Return how many steps it takes until the connection is closed; fail above the limit."""
    for number in range(limit):
        step(number)
        peer.core.poll_events()
        peer.poll()
        if peer.closed is not None:
            return number + 1
    raise AssertionError("the connection was not closed")


# -- before the headers ----------------------------------------------------------------------------


def unready(side: Side, config: Config) -> RawPeer:
    """Return a core that knows its peer's version but not its headers."""
    peer = RawPeer(side, config, greet=False)
    peer.stream(Version(), fin=True)
    peer.poll()
    return peer


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("size", [0, 10, 1_000])
def test_streams_held_before_the_headers_are_bounded(side: Side, size: int) -> None:
    """AQ-CONN-3: by their bytes, and by their number if they are empty."""
    # A server knows its client's limits before the client has its headers, and may use them.
    allowed = 64 * KIB + (2 * INITIAL_LIMITS.connection_window if side == Side.CLIENT else 0)
    small = Config(limits=INITIAL_LIMITS, max_early_bytes=64 * KIB)
    peer = unready(side, small)
    steps = until_closed(
        peer, lambda n: peer.routed(ENTRYPOINT, plain(n, b"x" * size)), allowed // 200
    )
    assert steps > 10
    peer.assert_closed_for(LIMIT, "AQ-CONN-3")


def test_memory_held_before_the_headers_matches_the_count() -> None:
    """AQ-CONN-3: the bound on bytes bounds memory, also for nearly empty streams."""
    peer = unready(Side.SERVER, Config(max_early_bytes=MIB))

    def flood() -> None:
        for number in range(2_000):
            peer.routed(ENTRYPOINT, plain(number))

    assert held_after(flood, peer) < 6 * peer.core.held_bytes


def test_a_stream_that_sends_bytewise_before_the_headers_is_bounded() -> None:
    """AQ-CONN-3."""
    peer = unready(Side.SERVER, Config(max_early_bytes=10_000))
    stream = peer.routed(ENTRYPOINT)
    assert until_closed(peer, lambda n: peer.write(stream, b"\x00" * 100), 200) <= 101


@pytest.mark.parametrize("side", list(Side))
def test_datagrams_held_before_the_headers_are_bounded(side: Side) -> None:
    """AQ-CONN-3: the rest are dropped, and the connection stays open."""
    peer = unready(side, Config(max_early_bytes=64 * KIB))

    def flood(numbers: range) -> None:
        for number in numbers:
            peer.datagram_to(from_client(number), plain(number, b"x" * 100))

    assert growth(flood, peer) < STEADY
    peer.assert_alive()
    assert peer.core.held_bytes <= 64 * KIB


def test_incomplete_headers_in_many_streams_are_bounded() -> None:
    """AQ-CONN-3: each is within its limit, and none is complete."""
    peer = unready(Side.SERVER, Config(max_early_bytes=64 * KIB))
    begun = b"\x02\x80\x20" + b"\x00" * 4_000
    assert until_closed(peer, lambda n: peer.raw(begun), 20) <= 17


def test_input_before_the_application_accepts_is_bounded() -> None:
    """AQ-CONN-3: between PeerHeaders and accept."""
    peer = RawPeer(Side.SERVER, Config(max_early_bytes=64 * KIB), greet=False)
    peer.stream(Version(), ConnectionHeaders(()), fin=True)
    peer.poll()

    def step(number: int) -> None:
        channel = from_client(1 + number)
        peer.routed(channel, plain(0, b"x" * 100), FinishSender(1), fin=True)

    assert until_closed(peer, step, 64 * KIB // 300) > 10


def fill(peer: RawPeer, size: int) -> None:
    """Send ``size`` bytes that the core holds."""
    stream = peer.routed(ENTRYPOINT)
    peer.write(stream, MessageFrame(0, (), (), bytes(size)).encode())


def waiting_for_the_application(config: Config, budget: Budget) -> RawPeer:
    peer = RawPeer(Side.SERVER, config, greet=False, early=budget)
    peer.stream(Version(), ConnectionHeaders(()), fin=True)
    peer.poll()
    return peer


def test_memory_held_for_all_clients_before_acceptance_is_bounded() -> None:
    """AQ-CONN-3: each client has an allowance."""
    budget = Budget(100 * KIB, 10 * KIB)
    greedy = [waiting_for_the_application(Config(), budget) for _ in range(4)]
    for peer in greedy:
        fill(peer, 40 * KIB)
    for peer in greedy[:3]:
        peer.assert_alive()
    greedy[3].assert_closed(LIMIT, "AQ-CONN-3")
    assert budget.used <= budget.limit
    modest = [waiting_for_the_application(Config(), budget) for _ in range(20)]
    for peer in modest:
        fill(peer, 8 * KIB)  # the stream itself counts too
        peer.assert_alive()


@pytest.mark.parametrize("end", ["accept", "refuse", "lose", "reset"])
def test_memory_held_for_a_client_is_freed_at_its_end(end: str) -> None:
    """AQ-CONN-3."""
    budget = Budget(100 * KIB, 10 * KIB)
    peer = waiting_for_the_application(Config(), budget)
    fill(peer, 60 * KIB)
    assert budget.used > 50 * KIB
    if end == "accept":
        peer.core.accept((), 0.0)
    elif end == "refuse":
        peer.core.refuse(CloseCode.REFUSED, "", 0.0)
    elif end == "lose":
        peer.core.handle_connection_lost(0, "", True, 0.0)
    else:
        for number in list(peer.core._streams):
            peer.core.handle_stream_reset(number, 0, 0.0)
    assert budget.used == 0
    fill(peer, 60 * KIB)
    assert (budget.used > 0) == (end == "reset")


def test_repeated_versions_leave_no_state() -> None:
    """AQ-VERSION-2: only the first one is answered."""
    peer = server_core()

    def flood(numbers: range) -> None:
        for _ in numbers:
            peer.stream(Version(), AckVersion(), fin=True)
            peer.datagram(Version())

    assert growth(flood, peer) < STEADY
    assert peer.core.leftovers() == ["entrypoint: receiver open"]


# -- incomplete frames -----------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [64 * KIB, 1_000])
def test_incomplete_messages_in_many_streams_are_bounded(largest: int) -> None:
    """AQ-LIMIT-3: by the windows, over all streams."""
    peer = server_core(SMALL)
    begun = ROUTE + message_head(0, largest) + b"x" * (largest - 1)
    enough = 2 * INITIAL_LIMITS.connection_window + INITIAL_LIMITS.max_headers
    steps = until_closed(peer, lambda n: peer.raw(begun), 3 * enough // largest)
    assert steps * largest < 1.2 * enough
    peer.assert_closed_for(LIMIT, "AQ-LIMIT-3")


def test_memory_held_for_incomplete_frames_matches_the_count() -> None:
    """AQ-LIMIT-3: however small the pieces are."""
    peer = server_core(SMALL)

    def flood() -> None:
        for number in range(5):
            stream = peer.raw(ROUTE + message_head(number, 40_000))
            for _ in range(3_000):
                peer.write(stream, b"x" * 13)

    assert held_after(flood, peer) < 2 * peer.core.held_bytes
    assert peer.core.held_bytes >= 5 * 3_000 * 13


@pytest.mark.parametrize(
    "data",
    [b"", b"\xef", RouteTo(to_server(1)).encode(), ROUTE],
    ids=["nothing", "a byte", "a stray", "a route"],
)
def test_streams_are_bounded(data: bytes) -> None:
    """AQ-LIMIT-5: also streams without a route."""
    peer = server_core(Config(max_streams=50))
    assert until_closed(peer, lambda n: peer.raw(data), 60) == 51
    peer.assert_closed_for(LIMIT, "AQ-LIMIT-5")


def test_ended_streams_are_not_remembered() -> None:
    """AQ-LIMIT-5."""
    peer = server_core(Config(max_streams=10))

    def flood(numbers: range) -> None:
        for number in numbers:
            peer.routed(ENTRYPOINT, plain(number), fin=True)
            peer.reset(peer.raw(ROUTE + b"\x04"))

    assert growth(flood, peer) < STEADY


# -- channels --------------------------------------------------------------------------------------


def by_route(peer: RawPeer) -> Callable[[int], object]:
    return lambda n: peer.routed(to_client(n) if n % 2 else from_client(1 + n), fin=True)


def by_datagram(peer: RawPeer) -> Callable[[int], object]:
    return lambda n: peer.datagram_to(from_client(1 + n), plain(0))


def by_attachment(peer: RawPeer) -> Callable[[int], object]:
    stream = peer.routed(ENTRYPOINT)
    return lambda n: peer.more(stream, carrier(n, from_client(1 + n)))


def taken(peer: RawPeer) -> Callable[[int], object]:
    attach = by_attachment(peer)
    return lambda n: (attach(n), peer.core.take(ENTRYPOINT, 1, peer.now))


def finished(peer: RawPeer) -> Callable[[int], object]:
    frames = (plain(0, b"x"), FinishSender(1))
    return lambda n: peer.routed(from_client(1 + n), *frames, fin=True)


def claimed(peer: RawPeer) -> Callable[[int], object]:
    """The application has the handle, and does not take the one empty message on it."""
    take_handle = taken(peer)
    frames = (plain(0), FinishSender(1))
    return lambda n: (take_handle(n), peer.routed(from_client(1 + n), *frames, fin=True))


def lingering(peer: RawPeer) -> Callable[[int], object]:
    """The application takes nothing, and every channel ends on the wire as far as it can."""
    attach = by_attachment(peer)
    frames = (plain(0), FinishSender(1))
    return lambda n: (attach(n), peer.routed(from_client(1 + n), *frames, fin=True))


def closed(peer: RawPeer) -> Callable[[int], object]:
    return lambda n: peer.routed(to_client(n), CloseReceiver(), fin=True)


@pytest.mark.parametrize("steps", [by_route, by_datagram, by_attachment, taken, finished, closed])
def test_channels_are_bounded(steps: Callable[[RawPeer], Callable[[int], object]]) -> None:
    """AQ-LIMIT-4: however they were created, on the wire or unclaimed."""
    allowed = 2 * INITIAL_LIMITS.max_channels
    peer = server_core(SMALL)
    assert until_closed(peer, steps(peer), allowed + 10) == allowed + 1
    peer.assert_closed_for(LIMIT, "AQ-LIMIT-4")


@pytest.mark.parametrize("steps", [claimed, lingering])
def test_ended_channels_that_were_not_taken_are_bounded(
    steps: Callable[[RawPeer], Callable[[int], object]],
) -> None:
    """AQ-LIMIT-4: past a bound, CLOSE_RECEIVER waits and the peer can open no more channels."""
    most = 4 * INITIAL_LIMITS.max_channels
    peer = server_core(SMALL)
    assert until_closed(peer, steps(peer), most) > INITIAL_LIMITS.max_channels
    peer.assert_closed_for(LIMIT, "AQ-LIMIT-4")


def test_ended_senders_in_untaken_messages_cost_no_more_than_their_messages() -> None:
    """AQ-LIMIT-4 and AQ-FLOW-9: only the message is kept."""
    peer = server_core(SMALL)
    stream = peer.routed(ENTRYPOINT)

    def flood() -> None:
        for number in range(200):
            channels = [to_client(16 * number + at) for at in range(16)]
            peer.more(stream, carrier(number, *channels))
            for channel in channels:
                peer.routed(channel, CloseReceiver(), fin=True)
            peer.core.poll_actions()

    held = held_after(flood, peer)
    assert held < SMALL.max_unpacked * 2_000 + 4 * peer.core.held_bytes
    assert peer.core.channel_count == 1
    peer.core.take(ENTRYPOINT, 999, peer.now)
    ended = [event for event in peer.events() if isinstance(event, SenderEnded)]
    assert len(ended) == 3_200
    assert {event.how for event in ended} == {End.RECEIVER_CLOSED}


def test_channels_that_a_server_opens_are_bounded_at_the_client() -> None:
    """AQ-LIMIT-4: the same in the other direction."""
    peer = client_core(Config(limits=Limits(max_channels=1)))
    (back,) = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_SENDER]).channels
    peer.poll()
    stream = peer.routed(back)
    steps = until_closed(peer, lambda n: peer.more(stream, carrier(n, to_server(n))), 300)
    assert steps == 2 * INITIAL_LIMITS.max_channels + 1


@pytest.mark.parametrize("stride", [1, 2, 1_000_003])
def test_tombstones_are_kept_as_ranges(stride: int) -> None:
    """AQ-FORGET-4: adjacent ones form one range; the number of ranges is bounded."""
    peer = server_core(SMALL)

    def flood(numbers: range) -> None:
        for number in numbers:
            peer.routed(from_client(1 + number * stride), ForgetChannel(), fin=True)
            peer.routed(to_client(number * stride), ForgetChannel(), fin=True)
            peer.now += 0.001
            peer.core.handle_timer(peer.now)
            peer.core.poll_actions()

    assert growth(flood, peer) < STEADY
    assert peer.core.channel_count == 1


def test_channels_that_ended_normally_leave_no_state() -> None:
    """AQ-FORGET-4: with messages, datagrams, announcements and acks."""
    peer = server_core(SMALL)
    stream = peer.routed(ENTRYPOINT)

    def flood(numbers: range) -> None:
        for number in numbers:
            channel = from_client(1 + number)
            peer.more(stream, carrier(number, channel))
            peer.datagram_to(channel, plain(0, b"x"))
            control = peer.routed(channel, plain(0, b"y"), SentUnreliable(2), FinishSender(1))
            peer.core.take(ENTRYPOINT, 9, peer.now)
            peer.core.take(channel, 9, peer.now)
            peer.now += 0.1
            peer.core.handle_timer(peer.now)
            peer.more(control, fin=True)
            peer.core.poll_actions()
            peer.core.poll_events()

    assert growth(flood, peer, 1_000) < STEADY
    assert peer.core.channel_count == 1


def test_own_channels_that_the_peer_ends_leave_no_state() -> None:
    """AQ-LIN-2: nor does their lineage."""
    peer = client_core(SMALL)
    acks = peer.routed(ENTRYPOINT)

    def flood(numbers: range) -> None:
        for number in numbers:
            attach = [GIVE_RECEIVER, GIVE_SENDER]
            sent = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=attach)
            peer.core.send(sent.channels[0], b"x", peer.now)
            peer.more(acks, AckReliable(((number, number + 1),)), Dequeued(4))
            peer.routed(sent.channels[0], CloseReceiver(), fin=True)
            peer.routed(sent.channels[1], CancelSender(), fin=True)
            peer.core.poll_actions()
            peer.core.poll_events()

    assert growth(flood, peer, 1_000) < STEADY
    assert peer.core.channel_count == 1


def test_own_channels_that_are_lost_leave_no_state() -> None:
    """AQ-LIN-3: except for the FORGET_CHANNEL times of the last second."""
    peer = client_core(SMALL)
    peer.core.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    acks = peer.routed(ENTRYPOINT)

    def flood(numbers: range) -> None:
        for _ in numbers:
            sent = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER])
            peer.core.send(sent.channels[0], b"x", peer.now)
            peer.core.poll_actions()
            peer.now += 0.03
            peer.core.handle_timer(peer.now)
            peer.more(acks, AckNackUnreliable((0, 1)))
            peer.core.poll_actions()
            peer.core.poll_events()

    assert growth(flood, peer, 500) < STEADY
    assert peer.core.channel_count == 1


def test_answers_to_stray_frames_are_bounded() -> None:
    """AQ-LIMIT-7: older ones are forgotten."""
    peer = client_core(Config(max_forgets=100))

    def flood(numbers: range) -> None:
        for number in numbers:
            peer.routed(to_client(number), fin=True)
            peer.now += 0.02
            peer.core.poll_actions()

    assert growth(flood, peer) < STEADY
    peer.assert_alive()
    assert until_closed(peer, lambda n: peer.routed(to_client(9_999 + n), fin=True), 200) <= 101


def test_repeated_frames_for_one_ended_channel_are_answered_once_per_interval() -> None:
    """AQ-FORGET-2: neither memory grows nor the connection closes."""
    peer = client_core(Config(max_forgets=100))

    def flood(numbers: range) -> None:
        for _ in numbers:
            peer.routed(to_client(1), fin=True)
            peer.datagram_to(to_client(1), plain(0))

    assert growth(flood, peer) < STEADY
    peer.assert_alive()


# -- numbers ---------------------------------------------------------------------------------------


def test_gaps_in_numbers_sent_in_streams_are_bounded() -> None:
    """AQ-LIMIT-6."""
    peer = server_core(SMALL)
    steps = until_closed(peer, lambda n: peer.routed(0, plain(2 * n, b"x"), fin=True), 200)
    assert steps == SMALL.max_ranges + 1


def test_datagrams_with_too_many_gaps_are_ignored() -> None:
    """AQ-LIMIT-6: the connection stays open."""
    peer = server_core(SMALL)

    def flood(numbers: range) -> None:
        for number in numbers:
            peer.datagram_to(ENTRYPOINT, plain(2 * number, b"x"))

    assert growth(flood, peer) < STEADY
    peer.assert_alive()


def test_gaps_in_acks_are_bounded() -> None:
    """AQ-LIMIT-6."""
    peer = client_core(SMALL)
    for _ in range(1_000):
        peer.core.send(ENTRYPOINT, b"", peer.now)
    stream = peer.routed(ENTRYPOINT)
    steps = until_closed(peer, lambda n: peer.more(stream, AckReliable(((2 * n, 2 * n + 1),))), 200)
    assert steps == SMALL.max_ranges + 1


def test_numbers_without_gaps_cost_no_memory() -> None:
    """AQ-LIMIT-6: a long-lived channel needs one range."""
    peer = server_core(SMALL)

    def flood(numbers: range) -> None:
        for first in numbers[::3]:
            for number in (first + 2, first, first + 1):
                peer.routed(ENTRYPOINT, plain(number, b"x"), fin=True)
                peer.datagram_to(ENTRYPOINT, plain(number, b"x"))
            peer.core.take(ENTRYPOINT, 9, peer.now)
            peer.core.poll_actions()

    assert growth(flood, peer, 1_800) < STEADY


# -- messages without content ----------------------------------------------------------------------


def in_bulk(peer: RawPeer) -> Callable[[range], None]:
    stream = peer.routed(ENTRYPOINT)
    return lambda numbers: peer.more(stream, *[plain(number) for number in numbers])


def one_by_one(peer: RawPeer) -> Callable[[range], None]:
    stream = peer.routed(ENTRYPOINT)

    def flood(numbers: range) -> None:
        for number in numbers:
            peer.more(stream, plain(number))
            peer.core.poll_actions()

    return flood


def unordered(peer: RawPeer) -> Callable[[range], None]:
    def flood(numbers: range) -> None:
        for number in numbers:
            peer.routed(ENTRYPOINT, plain(number), fin=True)
            peer.core.poll_actions()

    return flood


def unreliable(peer: RawPeer) -> Callable[[range], None]:
    control = peer.routed(ENTRYPOINT)

    def flood(numbers: range) -> None:
        for first in numbers[::100]:
            peer.datagram_to(ENTRYPOINT, *[plain(first + at) for at in range(100)])
            peer.more(control, SentUnreliable(100))
            peer.now += 0.1
            peer.core.handle_timer(peer.now)
            peer.core.poll_actions()

    return flood


def behind_a_byte(peer: RawPeer) -> Callable[[range], None]:
    stream = peer.routed(ENTRYPOINT)

    def flood(numbers: range) -> None:
        for first in numbers[::1000]:
            peer.more(stream, plain(first, b"x"), *[plain(first + at) for at in range(1, 1000)])

    return flood


@pytest.mark.parametrize("mode", [in_bulk, one_by_one, unordered, unreliable, behind_a_byte])
def test_empty_messages_cost_no_memory_in_any_mode(
    mode: Callable[[RawPeer], Callable[[range], None]],
) -> None:
    """AQ-FLOW-9: memory does not grow with their number, and none of them is lost."""
    peer = server_core(SMALL)
    send = mode(peer)
    sent: list[int] = []

    def flood(numbers: range) -> None:
        send(numbers)
        sent.append(len(numbers))

    assert growth(flood, peer, 3_000) < STEADY
    peer.assert_alive()
    batch = peer.core.take(ENTRYPOINT, 10**6, peer.now)
    assert sum(sent) >= 6_000  # `growth` repeats a flood while other allocations disturb it
    assert len(payloads(batch)) == sum(sent)


def test_empty_messages_with_gaps_in_the_queue_are_bounded() -> None:
    """AQ-LIMIT-6: every other datagram is lost, and the rest is not taken."""
    peer = server_core(SMALL)
    control = peer.routed(ENTRYPOINT)

    def step(number: int) -> None:
        peer.datagram_to(ENTRYPOINT, plain(2 * number))
        peer.more(control, SentUnreliable(2))
        peer.wait(0.1)

    assert until_closed(peer, step, 200) <= SMALL.max_ranges + 1
    peer.assert_closed_for(LIMIT, "AQ-LIMIT-6")


# -- messages with a little content ----------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 30, 300])
def test_memory_of_small_messages_is_proportional_to_their_size(size: int) -> None:
    """AQ-FLOW-9: credit bounds memory, not only bytes."""
    peer = server_core(SMALL)
    count = min(10_000, INITIAL_LIMITS.channel_window // size)

    def flood() -> None:
        for number in range(count):
            peer.routed(ENTRYPOINT, plain(number, b"x" * size), fin=True)
            peer.core.poll_actions()

    held = held_after(flood, peer)
    assert peer.core.held_bytes == count * size
    assert held < SMALL.max_unpacked * 300 + 10 * count * size


def test_memory_of_headers_is_proportional_to_their_size() -> None:
    """AQ-FLOW-9: many empty ones are the worst case."""
    peer = server_core(SMALL)
    headers = ((b"", b""),) * 100

    def flood() -> None:
        for number in range(300):
            peer.routed(ENTRYPOINT, MessageFrame(number, headers, (), b""), fin=True)
            peer.core.poll_actions()

    held = held_after(flood, peer)
    assert peer.core.held_bytes == 300 * 200
    assert held < SMALL.max_unpacked * 200 * 50 + 5 * 300 * 200


def test_queued_bytes_are_bounded_by_the_channel_window() -> None:
    """AQ-FLOW-2."""
    peer = server_core(SMALL)
    stream = peer.routed(ENTRYPOINT)
    assert until_closed(peer, lambda n: peer.more(stream, plain(n, b"x" * KIB)), 70) == 65
    peer.assert_closed_for(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")


def test_queued_bytes_are_bounded_by_the_connection_window() -> None:
    """AQ-FLOW-8: at twice its value."""
    peer = server_core(SMALL)
    full = plain(0, b"x" * 64 * KIB)
    assert until_closed(peer, lambda n: peer.routed(from_client(1 + n), full), 70) == 33
    peer.assert_closed_for(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")


def test_untaken_queues_of_finished_channels_are_bounded() -> None:
    """AQ-FLOW-7: by a window, and by the credit that the peer still has."""
    peer = server_core(SMALL)
    frames = (plain(0, b"x" * 60 * KIB), FinishSender(1))

    def step(number: int) -> None:
        peer.routed(from_client(1 + number), *frames, fin=True)
        assert peer.core.held_bytes <= 3 * INITIAL_LIMITS.connection_window

    assert until_closed(peer, step, 70) < 60
    peer.assert_closed_for(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")


def test_headers_of_channels_that_are_not_taken_are_bounded() -> None:
    """AQ-FLOW-1: attachments cost credit like any other content."""
    peer = server_core(replace(SMALL, limits=replace(INITIAL_LIMITS, max_channels=HUGE)))
    headers = ((b"", b"x" * 1_000),)
    stream = peer.routed(ENTRYPOINT)

    def step(number: int) -> None:
        attachment = Attachment(from_client(1 + number), headers)
        peer.more(stream, MessageFrame(number, (), (attachment,), b""))

    assert until_closed(peer, step, 70) <= 66
    peer.assert_closed_for(CloseCode.FLOW_CONTROL, "AQ-FLOW-2")


# -- floods of control frames ----------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2**40])
def test_memory_of_repeated_announcements_is_bounded(count: int) -> None:
    """AQ-UNREL-2: announcements close together share a deadline."""
    peer = server_core(SMALL)
    stream = peer.routed(ENTRYPOINT)
    announcement = encode([SentUnreliable(count)] * 100)

    def flood(numbers: range) -> None:
        for _ in numbers:
            peer.write(stream, announcement)
            peer.now += 0.001
            peer.core.handle_timer(peer.now)
            peer.core.poll_actions()

    assert growth(flood, peer, 200) < STEADY
    peer.assert_alive()


def test_a_huge_announcement_takes_constant_time() -> None:
    """AQ-UNREL-2: the core never iterates over single numbers."""
    peer = server_core(SMALL)
    peer.core.handle_rtt(10)
    peer.datagram_to(ENTRYPOINT, plain(2**62, b"x"))
    peer.routed(ENTRYPOINT, SentUnreliable(MAX_VARINT), FinishSender(0), fin=True)
    peer.wait(2)
    assert AckNackUnreliable((0, 2**62, 1, MAX_VARINT - 2**62 - 1)) in peer.said_about(ENTRYPOINT)
    peer.assert_alive()


def test_floods_of_acks_and_credit_leave_no_state() -> None:
    """AQ-ACK-2: repeated acks, and DEQUEUED of 0 bytes."""
    peer = client_core(SMALL)
    for _ in range(100):
        peer.core.send(ENTRYPOINT, b"", peer.now)
    stream = peer.routed(ENTRYPOINT, AckReliable(((0, 50),)))
    same = encode([AckReliable(((0, 50),)), AckReliable(((0, 10), (20, 30))), Dequeued(0)])

    def flood(numbers: range) -> None:
        for _ in numbers:
            peer.write(stream, same)

    assert growth(flood, peer) < STEADY
    peer.assert_alive()


def test_frames_for_an_ended_channel_leave_no_state() -> None:
    """AQ-ROUTE-4."""
    peer = server_core(SMALL)
    peer.core.close(ENTRYPOINT, peer.now)

    def flood(numbers: range) -> None:
        for number in numbers:
            peer.routed(ENTRYPOINT, CancelSender(), fin=True)
            peer.routed(ENTRYPOINT, plain(number), FinishSender(number), fin=True)
            peer.datagram_to(ENTRYPOINT, plain(number))

    assert growth(flood, peer) < STEADY
    assert peer.core.leftovers() == []


def test_messages_for_a_closed_receiver_are_not_kept() -> None:
    """AQ-CLOSE-3: while it waits for an announcement."""
    peer = server_core(SMALL)
    peer.datagram_to(ENTRYPOINT, plain(0))
    peer.core.close(ENTRYPOINT, peer.now)

    def flood(numbers: range) -> None:
        for number in numbers:
            message = carrier(2 * number, from_client(1 + number))
            peer.routed(ENTRYPOINT, message, fin=True)
            peer.datagram_to(ENTRYPOINT, plain(2 + 2 * number, b"x" * 100))

    assert growth(flood, peer) < STEADY
    peer.assert_alive()


def test_timers_of_ended_channels_are_removed() -> None:
    """AQ-UNREL-2: a timer is kept until its deadline at most."""
    peer = server_core(SMALL)
    peer.core.handle_rtt(0.5)

    def flood(numbers: range) -> None:
        for number in numbers:
            stream = peer.routed(from_client(1 + number), SentUnreliable(1))
            peer.routed(from_client(1 + number), ForgetChannel(), fin=True)
            peer.reset(stream)
            peer.now += 0.01
            peer.core.handle_timer(peer.now)
            peer.core.poll_actions()

    assert growth(flood, peer) < STEADY
    peer.now += 2
    peer.core.handle_timer(peer.now)
    assert peer.core.next_timer() is None


# -- a peer that does not answer -------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("window", [HUGE, 100])
def test_a_sender_waits_for_a_peer_that_never_acks(mode: Mode, window: int) -> None:
    """AQ-LIMIT-6: messages without a fate do not fill the memory."""
    peer = client_core(SMALL, limits=replace(WIDE, channel_window=window))
    peer.core.set_mode(ENTRYPOINT, mode)
    payload = b"" if window == HUGE else b"x" * 60

    def flood(numbers: range) -> None:
        for _ in numbers:
            with suppress(WouldBlock):
                peer.core.send(ENTRYPOINT, payload, peer.now)
            peer.now += 0.001
            peer.core.handle_timer(peer.now)
            peer.core.poll_actions()

    assert growth(flood, peer) < STEADY


def test_channels_sent_to_a_peer_that_never_acks_are_bounded() -> None:
    """AQ-LIMIT-4: by the peer's limit, lineage included."""
    peer = client_core(limits=replace(WIDE, max_channels=50))

    def flood(numbers: range) -> None:
        for _ in numbers:
            with suppress(LocalProtocolError):
                peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER])
            peer.core.poll_actions()

    assert growth(flood, peer) < STEADY


def test_headers_of_two_bytes_are_not_kept_as_objects() -> None:
    """AQ-FLOW-9: with the default configuration, memory stays proportional to credit."""
    peer = server_core(Config())
    stream = peer.routed(ENTRYPOINT)
    empty_pairs = ((b"", b""),) * 30_000

    def fill() -> None:
        for number in range(12):
            peer.more(stream, MessageFrame(number, empty_pairs, (), b""))

    # The first message may be objects; the others are bytes.
    assert held_after(fill, peer) < 6 * 12 * 60_000


def test_a_slow_application_does_not_count_against_its_peer() -> None:
    """AQ-LIMIT-4: untaken halves that ended on the wire do not count against the peer."""
    limits = replace(INITIAL_LIMITS, max_channels=10)
    config = Config(limits=limits, initial_limits=limits)
    pair = Pair(config, config)
    for _ in range(100):
        sent = pair.client.send_message(ENTRYPOINT, b"", pair.now, attach=[GIVE_SENDER])
        pair.client.close(sent.channels[0], pair.now)
        pair.run()
    assert pair.client.channel_count == 1
    batch = pair.server.take(ENTRYPOINT, 200, pair.now)
    assert len(batch) == 100
    ends = [event for event in pair.server.poll_events() if isinstance(event, SenderEnded)]
    assert [event.how for event in ends] == [End.RECEIVER_CLOSED] * 100


def test_unacknowledged_carriers_are_bounded() -> None:
    """AQ-LIMIT-6: senders wait for a peer that returns credit and ends channels, but never acks."""
    peer = client_core(Config(max_ranges=20))
    for number in range(20):
        peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER])
        assert peer.core._channels.halves[ENTRYPOINT].node.size() == number + 1  # type: ignore[union-attr]
    with pytest.raises(WouldBlock):
        peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=[GIVE_RECEIVER])
    assert any("20 carriers" in left for left in peer.core.leftovers())


# -- costs -----------------------------------------------------------------------------------------


def test_streams_before_acceptance_count_even_if_they_are_empty() -> None:
    """AQ-COST-1."""
    peer = unready(Side.SERVER, Config(max_early_streams=100))
    assert until_closed(peer, lambda n: peer.raw(b"\xef"), 200) == 101
    peer.assert_closed_for(LIMIT, "AQ-COST-1")


def test_streams_after_acceptance_do_not_count_as_early() -> None:
    """AQ-COST-1."""
    peer = server_core(Config(max_early_streams=10))
    for number in range(100):
        peer.routed(from_client(number))
    peer.assert_alive()


def account(limit: int) -> AddressAccount:
    return AddressAccount(Budget(limit, 0), Budget(limit, 10 * COST_OF_STREAM))


def test_streams_before_acceptance_are_charged_to_the_address() -> None:
    """AQ-CONN-3: also empty ones, and the charge is returned."""
    shared = account(100 * COST_OF_STREAM)
    one, two = (RawPeer(Side.SERVER, Config(), greet=False, account=shared) for _ in range(2))
    for _ in range(60):
        one.raw(b"\xef")
    assert until_closed(two, lambda n: two.raw(b"\xef"), 60) <= 44
    two.assert_closed_for(LIMIT, "AQ-CONN-3")
    one.core.handle_connection_lost(0, "", True, 0.0)
    assert shared.early.used == 0


def test_streams_and_channels_are_charged_to_the_address() -> None:
    """AQ-COST-4: beyond each allowance; the charge of ended ones is returned."""
    shared = account(320 * COST_OF_STREAM)
    peers = [RawPeer(Side.SERVER, Config(), account=shared) for _ in range(3)]
    for peer in peers:
        for number in range(90):
            peer.routed(from_client(number))
            peer.core.poll_events()
    for peer in peers[:2]:
        peer.assert_alive()
    peers[2].poll()
    peers[2].assert_closed_for(LIMIT, "AQ-COST-4")
    assert 0 < shared.accepted.used <= shared.accepted.limit
    for peer in peers[:2]:
        peer.core.handle_connection_lost(0, "", True, 0.0)
    assert shared.accepted.used == 0
