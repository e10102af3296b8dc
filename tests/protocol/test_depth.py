"""Deep chains of channels: no recursion, and time linear in the depth."""

import gc
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from aqueduct.errors import CloseCode
from aqueduct.protocol.actions import WriteStream
from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import ConnectionCore
from aqueduct.protocol.events import ConnectionEnded, Delivered, End, SenderEnded, Undelivered
from aqueduct.protocol.lineage import LINEAGE_SHOWN
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import (
    AckReliable,
    CancelSender,
    CloseReceiver,
    ForgetChannel,
    RouteTo,
)
from tests.protocol.wires import (
    GIVE_RECEIVER,
    HUGE,
    WIDE,
    Pair,
    RawPeer,
    carrier,
    client_core,
    from_client,
    server_core,
    to_client,
)

DEEP = int(os.environ.get("COMPLEXITY_CHANNELS", "25000"))
"""`make soak` runs 100,000."""
ROOMY = Config(limits=WIDE, max_streams=HUGE)


@pytest.fixture(autouse=True)
def recursion_limit() -> Iterator[None]:
    """Limit the depth of the stack, so that recursion fails."""
    before = sys.getrecursionlimit()
    assert before <= DEEP / 10
    yield
    assert sys.getrecursionlimit() == before


def calls(action: Callable[[], object]) -> int:
    """Return how many functions are called."""
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def assert_linear(work: Callable[[int], Callable[[], object]]) -> None:
    """Check that twice the depth takes about twice the calls."""
    small, large = calls(work(1_000)), calls(work(2_000))
    assert small > 1_000
    assert large < 2.1 * small


def chain_of(core: ConnectionCore, length: int) -> list[int]:
    """Create channels, each attached to a message on the previous one."""
    channels = [ENTRYPOINT]
    for _ in range(length):
        sent = core.send_message(channels[-1], b"", 100.0, attach=[GIVE_RECEIVER])
        channels += sent.channels
    return channels[1:]


def client_with_chain(length: int) -> tuple[RawPeer, list[int]]:
    peer = client_core(ROOMY)
    chain = chain_of(peer.core, length)
    peer.core.poll_actions()
    return peer, chain


def ack_below_entrypoint(peer: RawPeer, chain: list[int]) -> None:
    """Ack every message of the chain except the first, the deepest first."""
    ack = AckReliable(((0, 1),))
    for channel in reversed(chain[:-1]):
        peer.routed(channel, ack, fin=True)


def forgotten(core: ConnectionCore) -> list[int]:
    """Return the channels for which the core sends FORGET_CHANNEL, and check each byte."""
    channels = []
    for action in core.poll_actions():
        if isinstance(action, WriteStream) and action.data.endswith(ForgetChannel().encode()):
            channel = 0
            for at, byte in enumerate(action.data[1:-1]):
                channel |= (byte & 0x7F) << (7 * at)
            assert action.data == RouteTo(channel).encode() + ForgetChannel().encode()
            assert action.fin
            channels.append(channel)
    return channels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "acked"),
    [(DEEP, False), (DEEP // 5, True)],
    ids=["nothing acked", "all below acked"],
)
def test_a_deep_chain_is_lost_as_a_whole(length: int, acked: bool) -> None:
    """AQ-LIN-3 to AQ-LIN-5: one nack loses many thousand channels."""
    peer, chain = client_with_chain(length)
    if acked:
        ack_below_entrypoint(peer, chain)
    assert peer.core.channel_count == length + 1
    assert peer.events() == []

    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    events = peer.events()
    lost = [event for event in events if isinstance(event, SenderEnded) and event.how is End.LOST]
    assert [event.channel for event in lost] == chain
    assert lost[2].lineage == (chain[1], chain[0], ENTRYPOINT)
    assert all(len(event.lineage) <= LINEAGE_SHOWN for event in lost)
    assert events[0] == Undelivered(ENTRYPOINT, True, ((0, 1),))
    assert events[-1] == SenderEnded(ENTRYPOINT, End.RECEIVER_CLOSED)
    assert len(events) == length + 2
    assert forgotten(peer.core) == chain[:-1], "the last one was never routed"
    assert peer.core.leftovers() == []
    # AQ-FLOW-8: only the credit of what was lost is still to come back.
    peer.core.handle_timer(peer.now + 1.0)
    assert peer.core.next_timer() is None


@pytest.mark.slow
def test_a_deep_chain_becomes_accessible_as_a_whole() -> None:
    """AQ-LIN-2 and AQ-LIN-5: one ack makes many thousand channels accessible."""
    peer, chain = client_with_chain(DEEP)
    ack_below_entrypoint(peer, chain)
    assert peer.events() == []
    peer.routed(ENTRYPOINT, AckReliable(((0, 1),)), fin=True)
    events = peer.events()
    assert [event.channel for event in events if isinstance(event, Delivered)] == [
        ENTRYPOINT,
        *chain[:-1],
    ]
    assert len(events) == DEEP
    assert peer.core.poll_actions() == []


@pytest.mark.parametrize("acked", [False, True], ids=["nothing acked", "all below acked"])
def test_losing_a_chain_takes_time_linear_in_its_length(acked: bool) -> None:
    """AQ-LIN-5."""

    def work(length: int) -> Callable[[], object]:
        peer, chain = client_with_chain(length)
        if acked:
            ack_below_entrypoint(peer, chain)
        return lambda: peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)

    assert_linear(work)


def test_a_chain_becomes_accessible_in_time_linear_in_its_length() -> None:
    """AQ-LIN-5."""

    def work(length: int) -> Callable[[], object]:
        peer, chain = client_with_chain(length)
        ack_below_entrypoint(peer, chain)
        return lambda: peer.routed(ENTRYPOINT, AckReliable(((0, 1),)), fin=True)

    assert_linear(work)


def test_a_wide_message_is_lost_in_time_linear_in_its_channels() -> None:
    """AQ-LIN-5: a tree can be wide as well."""

    def work(width: int) -> Callable[[], object]:
        peer = client_core(ROOMY)
        for _ in range(width // 10):
            attach = [GIVE_RECEIVER] * 10
            peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=attach)
        peer.core.poll_actions()
        return lambda: peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)

    assert_linear(work)


# -- queues inside queues --------------------------------------------------------------------------


def server_with_queues(depth: int) -> RawPeer:
    """Return a server with a queue in a queue in a queue, ``depth`` levels deep."""
    peer = server_core(ROOMY)
    above = ENTRYPOINT
    for index in range(1, depth + 1):
        peer.routed(above, carrier(0, from_client(index), to_client(index)), fin=True)
        above = from_client(index)
    peer.core.poll_actions()
    assert peer.core.channel_count == 2 * depth + 1
    return peer


def by_close(peer: RawPeer) -> None:
    peer.core.close(ENTRYPOINT, peer.now)


def by_cancel(peer: RawPeer) -> None:
    peer.routed(ENTRYPOINT, CancelSender(), fin=True)


@pytest.mark.parametrize("drop", [by_close, by_cancel])
def test_queues_inside_queues_are_dropped_as_a_whole(drop: Callable[[RawPeer], None]) -> None:
    """AQ-CLOSE-4: 10,000 deep, every receiver closed and every sender cancelled."""
    depth = 10_000
    peer = server_with_queues(depth)
    drop(peer)
    said = [a.data for a in peer.core.poll_actions() if isinstance(a, WriteStream) and a.fin]
    assert sum(data.endswith(CloseReceiver().encode()) for data in said) == depth + 1
    assert sum(data.endswith(CancelSender().encode()) for data in said) == depth
    assert peer.core.channel_count == depth, "the senders wait for CLOSE_RECEIVER"
    assert peer.core.held_bytes == 0
    for index in range(1, depth + 1):
        peer.routed(to_client(index), CloseReceiver(), fin=True)
    assert peer.core.leftovers() == []


def test_a_forgotten_channel_drops_the_queues_inside_it() -> None:
    """AQ-FORGET-1 and AQ-CLOSE-4."""
    depth = 5_000
    peer = server_with_queues(depth)
    peer.routed(from_client(1), ForgetChannel(), fin=True)
    assert [line for line in peer.core.leftovers() if "receiver" in line] == [
        "entrypoint: receiver open"
    ]


def test_queues_inside_queues_are_dropped_in_time_linear_in_their_depth() -> None:
    """AQ-CLOSE-4."""

    def work(depth: int) -> Callable[[], object]:
        peer = server_with_queues(depth)
        return lambda: by_close(peer)

    assert_linear(work)


# -- both sides, and the end -----------------------------------------------------------------------


@pytest.mark.parametrize("taken", [False, True])
def test_two_sides_lose_a_deep_chain_and_agree(taken: bool) -> None:
    """AQ-LIN-4: closed before or after the first message was processed, nothing is left."""
    pair = Pair(ROOMY, ROOMY)
    chain = chain_of(pair.client, 3_000)
    if taken:
        pair.run()
    else:
        pair.to_server.hold_everything()
        pair.run()
    pair.server.close(ENTRYPOINT, pair.now)
    pair.wait(0.1)
    pair.to_server.release()
    pair.wait(1.5)
    ends = {e.channel: e.how for e in pair.at_client() if isinstance(e, SenderEnded)}
    # An untaken receiver is closed; one whose carrier was never processed is lost.
    expected = End.RECEIVER_CLOSED if taken else End.LOST
    assert [ends[channel] for channel in chain] == [expected] * len(chain)
    assert pair.client.leftovers() == []
    assert pair.server.leftovers() == []


def test_a_connection_with_a_deep_chain_ends() -> None:
    """AQ-CONN-7: its memory is freed without a deep destructor."""
    peer, chain = client_with_chain(20_000)
    ack_below_entrypoint(peer, chain)
    peer.core.close_connection(CloseCode.NO_ERROR, "", peer.now)
    events = peer.events()
    assert len(events) == len(chain) + 2
    assert isinstance(events[-1], ConnectionEnded)
    assert peer.core.leftovers() == []
    del peer
    gc.collect()


def test_lost_channels_that_ended_normally_leave_no_lineage() -> None:
    """AQ-LIN-4: pending senders that ended are kept by their lineage only."""
    peer = client_core(ROOMY)
    chain = chain_of(peer.core, 2_000)
    for channel in chain:
        peer.core.finish(channel, peer.now)
    for channel in reversed(chain):
        acks = [AckReliable(((0, 1),))] if channel != chain[-1] else []
        peer.routed(channel, *acks, CloseReceiver(), fin=True)
    peer.core.poll_actions()
    peer.events()
    assert peer.core.channel_count == len(chain) + 1
    peer.routed(ENTRYPOINT, CloseReceiver(), fin=True)
    assert forgotten(peer.core) == chain
    assert peer.core.leftovers() == []
