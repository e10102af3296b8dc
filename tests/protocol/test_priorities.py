"""The scheduler: strict classes, fair shares of bytes within a class, and no starvation."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.protocol.actions import Room, SendDatagram, WriteStream
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.protocol.outgoing_stream import SenderFlow
from aqueduct.protocol.priorities import CLASSES, Flow, Scheduler, check_priority
from aqueduct.wire.chanid import ENTRYPOINT
from aqueduct.wire.frames import CancelSender, FinishSender, MessageFrame, RouteTo
from tests.protocol.wires import Pair, RawPeer, client_core, decode, payloads, plain

QUANTUM = 100
CYCLE = 2 * CLASSES


@dataclass
class Model:
    """A scheduler, what each flow has to send, and what left, in order."""

    scheduler: Scheduler = field(default_factory=lambda: Scheduler(QUANTUM))
    flows: list[Flow] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    datagrams: int = 0
    """Datagrams of 40 bytes that wait."""
    left: list[tuple[int, int]] = field(default_factory=list)
    """The flow, -1 for a datagram, and its bytes."""

    def add(self, priority: int, size: int) -> None:
        self.flows.append(Flow(priority))
        self.waiting.append(size)
        self.scheduler.add(self.flows[-1])

    def step(self, most: int) -> bool:
        """Let up to this many bytes leave, if 0 a datagram; return False if nothing waits."""
        has = self.datagrams > 0
        flow = self.scheduler.next(with_datagrams=has) if most else None
        if flow is None:
            if not has:
                return False
            self.datagrams -= 1
            self.scheduler.spend_datagram(40)
            self.left.append((-1, 40))
            return True
        number = self.flows.index(flow)
        size = min(self.waiting[number], self.scheduler.grant(flow, with_datagrams=has), most)
        assert size > 0
        self.waiting[number] -= size
        self.left.append((number, size))
        if self.waiting[number]:
            self.scheduler.charge(flow, size)
        else:
            self.scheduler.spend(size)
            self.scheduler.remove(flow)
        return True

    def sent(self, number: int) -> int:
        return sum(size for flow, size in self.left if flow == number)


FLOWS = st.lists(
    st.tuples(st.integers(0, CLASSES - 1), st.integers(1, 20 * QUANTUM)), min_size=1, max_size=12
)
STEPS = st.lists(st.integers(1, 5 * QUANTUM), max_size=100)
SCARCE = st.lists(st.just(0) | st.integers(1, 5 * QUANTUM), max_size=200)
"""The room of a transport that often takes only datagrams."""


@given(flows=FLOWS, steps=STEPS, datagrams=st.integers(0, 50))
def test_everything_leaves_in_the_end(
    flows: list[tuple[int, int]], steps: list[int], datagrams: int
) -> None:
    model = Model(datagrams=datagrams)
    for priority, size in flows:
        model.add(priority, size)
    for most in steps:
        model.step(most)
    while model.step(10**9):
        pass
    assert not any(model.waiting)
    assert not model.datagrams
    assert model.scheduler.waiting == 0
    assert [model.sent(number) for number in range(len(flows))] == [size for _, size in flows]


@given(flows=FLOWS, steps=SCARCE, datagrams=st.integers(0, 500))
def test_a_class_that_waits_gets_its_turn_in_each_cycle(
    flows: list[tuple[int, int]], steps: list[int], datagrams: int
) -> None:
    """AQ-PRIO-4: whatever the other classes and datagrams have to send.

    Datagrams that leave without room for messages do not count.
    """
    model = Model(datagrams=datagrams)
    for priority, size in flows:
        model.add(priority, size)
    others = [0] * CLASSES
    """Bytes of others that left since each class began to wait, or last had something leave."""
    for most in [*steps, *[7 * QUANTUM] * 300]:
        waiting = {flow.priority for flow in model.flows if flow.is_waiting}
        if not model.step(most):
            break
        number, size = model.left[-1]
        priority = model.flows[number].priority if number >= 0 else -1
        for each in range(CLASSES):
            if each not in waiting or each == priority:
                others[each] = 0
            elif most:
                others[each] += size
                assert others[each] <= (CYCLE - 1) * QUANTUM + 40, "a datagram is not cut"


@pytest.mark.parametrize("without_room", [0, 1, 2, 5])
def test_datagrams_use_up_nothing_of_the_turn_of_a_class(without_room: int) -> None:
    """AQ-PRIO-4: they leave also while the transport has no room for messages."""
    model = Model(datagrams=1_000)
    model.add(CLASSES - 1, 10**9)
    cycles = 4
    for _ in range(cycles):
        while model.scheduler.next(with_datagrams=True) is None:
            model.step(10**9)
        before = model.sent(0)
        for _ in range(without_room):
            model.step(0)
        while model.scheduler.next(with_datagrams=True) is not None:
            model.step(10**9)
        assert model.sent(0) - before == QUANTUM
    total = sum(size for _, size in model.left)
    assert total - cycles * without_room * 40 <= cycles * CYCLE * QUANTUM


@given(
    sizes=st.lists(st.integers(1, 5 * QUANTUM), min_size=2, max_size=8),
    steps=st.lists(st.integers(1, 3 * QUANTUM), min_size=20, max_size=200),
)
def test_the_flows_of_a_class_get_the_same_bytes(sizes: list[int], steps: list[int]) -> None:
    """AQ-PRIO-3: within a quantum of each other, however little leaves at once."""
    model = Model()
    for _ in sizes:
        model.add(4, 10**9)
    for most in steps:
        model.step(most)
        sent = [model.sent(number) for number in range(len(sizes))]
        assert max(sent) - min(sent) <= QUANTUM


@given(urgent=st.integers(0, CLASSES - 2), steps=st.lists(st.integers(1, 500), min_size=50))
def test_a_more_urgent_class_gets_all_but_the_guaranteed_share(
    urgent: int, steps: list[int]
) -> None:
    """AQ-PRIO-3."""
    model = Model()
    model.add(CLASSES - 1, 10**9)
    model.add(urgent, 10**9)
    for most in steps:
        model.step(most)
        slow, fast = model.sent(0), model.sent(1)
        cycles = (slow + fast) // (CYCLE * QUANTUM) + 1
        assert slow <= cycles * QUANTUM


def test_datagrams_leave_before_messages_but_for_the_guaranteed_share() -> None:
    model = Model(datagrams=400)
    model.add(0, 10_000)
    while model.datagrams:
        model.step(10**9)
    cycles = 400 * 40 // ((CYCLE - 1) * QUANTUM)
    assert cycles * (QUANTUM - 40) <= model.sent(0) <= (cycles + 1) * QUANTUM


def test_a_flow_that_waits_alone_is_not_cut() -> None:
    model = Model()
    model.add(7, 50 * QUANTUM)
    model.step(10**9)
    assert model.left == [(0, 50 * QUANTUM)]


def test_a_waiting_flow_can_change_its_class() -> None:
    """AQ-PRIO-1."""
    model = Model()
    model.add(3, 2 * QUANTUM)
    model.add(6, 2 * QUANTUM)
    model.scheduler.move(model.flows[1], 0)
    model.step(10**9)
    assert model.left == [(1, QUANTUM)]
    model.scheduler.remove(model.flows[1])
    model.scheduler.move(model.flows[1], 5)
    assert not model.flows[1].is_waiting
    assert model.scheduler.flows() == [model.flows[0]]
    model.scheduler.clear()
    assert not model.flows[0].is_waiting
    assert model.scheduler.next(with_datagrams=False) is None


@pytest.mark.parametrize("wrong", [-1, 8])
def test_a_priority_out_of_range_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="from 0, which leaves first"):
        check_priority(wrong)


# -- what leaves -----------------------------------------------------------------------------------


def room_of(size: int, *, urgent: int = 0, streams: int | None = None) -> Room:
    room = Room()
    room.bytes, room.urgent = size, urgent
    if streams is not None:
        room.streams = room.message_streams = streams
    return room


def senders(*priorities: int, mode: Mode = Mode.ORDERED) -> tuple[RawPeer, list[int]]:
    """Return a client with a sender of each priority, whose carriers have left."""
    peer = client_core()
    attach = [Attach(Give.RECEIVER, mode=mode, priority=each) for each in priorities]
    channels = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=attach).channels
    peer.poll()
    peer.log.clear()
    return peer, list(channels)


def leaving(peer: RawPeer, size: int) -> list[str]:
    """Poll with room for a few bytes at a time; return what left, by channel and kind."""
    seen: list[str] = []
    while peer.core.output.is_waiting:
        peer.core.output.size  # noqa: B018 -- must not raise whatever waits
        for action in peer.core.poll_actions(room_of(size, urgent=size)):
            if isinstance(action, SendDatagram):
                (route, *_) = decode(action.data)
                assert isinstance(route, RouteTo)
                seen.append(f"datagram {route.channel}")
            elif isinstance(action, WriteStream):
                peer._read(action)
                for stream, frame in peer.log:
                    channel = peer.streams[stream].channel
                    seen.append(f"{type(frame).__name__} {channel}")
                peer.log.clear()
    assert peer.core.output.size == 0
    return [each for each in seen if not each.startswith("RouteTo")]


def test_messages_leave_by_class_and_control_frames_first() -> None:
    """AQ-PRIO-2 and AQ-PRIO-3."""
    peer, (bulk, urgent, ended) = senders(7, 0, 4)
    peer.core.send(ended, b"x", peer.now)
    peer.poll()
    peer.log.clear()
    for _ in range(3):
        peer.core.send(bulk, bytes(500), peer.now)
        peer.core.send(urgent, bytes(500), peer.now)
    peer.core.cancel(ended, peer.now)
    kinds = leaving(peer, 300)
    assert kinds == [
        f"{CancelSender.__name__} {ended}",
        *[f"MessageFrame {urgent}"] * 3,
        *[f"MessageFrame {bulk}"] * 3,
    ]


def test_datagrams_leave_between_control_frames_and_messages() -> None:
    """AQ-PRIO-2."""
    peer, (bulk,) = senders(0)
    attach = [Attach(Give.RECEIVER, mode=Mode.UNRELIABLE)]
    (quick,) = peer.core.send_message(ENTRYPOINT, b"", peer.now, attach=attach).channels
    peer.poll()
    peer.log.clear()
    peer.core.send(bulk, bytes(5_000), peer.now)
    peer.core.send(quick, bytes(500), peer.now)
    assert leaving(peer, 100_000) == [f"datagram {quick}", f"MessageFrame {bulk}"]


def test_a_message_of_another_channel_waits_for_no_more_than_a_quantum() -> None:
    peer, (bulk, small) = senders(4, 4)
    peer.core.send(bulk, bytes(200_000), peer.now)
    peer.core.poll_actions(room_of(1_000))
    peer.core.send(small, b"now", peer.now)
    before = 0
    while not peer.log:
        for action in peer.core.poll_actions(room_of(1_000)):
            assert isinstance(action, WriteStream)
            if decode_route(action.data) == small:
                peer._read(action)
            else:
                before += len(action.data)
    assert before <= 16_384


def decode_route(data: bytes) -> int:
    """Return the channel of a stream's first write; -1 for another write."""
    try:
        (route, *_) = decode(data)
    except Exception:  # noqa: BLE001 -- the middle of a message
        return -1
    return route.channel if isinstance(route, RouteTo) else -1


@pytest.mark.parametrize("mode", list(Mode))
def test_a_finish_leaves_behind_the_messages_of_its_channel(mode: Mode) -> None:
    """AQ-PRIO-5."""
    peer, (channel, other) = senders(4, 4, mode=mode)
    for number in range(5):
        peer.core.send(channel, bytes(300), peer.now)
        peer.core.send(other, b"%d" % number, peer.now)
    peer.core.finish(channel, peer.now)
    of_channel = [each for each in leaving(peer, 200) if each.endswith(f" {channel}")]
    assert of_channel[-1] == f"{FinishSender.__name__} {channel}"
    assert sum(not each.startswith("Finish") for each in of_channel) >= (
        2 if mode is Mode.UNRELIABLE else 5
    )


def test_a_finish_behind_messages_is_dropped_with_them() -> None:
    peer, (channel,) = senders(4, mode=Mode.UNORDERED)
    peer.core.send(channel, bytes(300), peer.now)
    peer.core.finish(channel, peer.now)
    peer.core.poll_actions(room_of(0, urgent=0))
    peer.routed(ENTRYPOINT, fin=True)
    peer.core.handle_connection_lost(0, "", True, peer.now)
    assert peer.core.poll_actions() == []
    assert not peer.core.output.is_waiting


def test_streams_wait_for_stream_credit_in_the_order_of_their_turns() -> None:
    """AQ-STREAM-9: what has its stream does not wait."""
    peer, (first, second, opened) = senders(0, 1, 2)
    peer.core.send(opened, b"a", peer.now)
    peer.poll()
    peer.log.clear()
    for channel in (second, first, opened):
        peer.core.send(channel, b"b", peer.now)
    left: list[int | None] = []
    for _ in range(3):
        for action in peer.core.poll_actions(room_of(10_000, streams=len(left) and 1)):
            assert isinstance(action, WriteStream)
            peer._read(action)
            left.append(peer.streams[action.stream].channel)
    assert left == [opened, first, second]


def test_a_channel_that_waits_for_stream_credit_can_be_cancelled() -> None:
    """AQ-STREAM-9."""
    peer, (channel,) = senders(4, mode=Mode.UNORDERED)
    for _ in range(3):
        peer.core.send(channel, b"x", peer.now)
    assert peer.core.poll_actions(room_of(10_000, streams=0)) == []
    peer.core.cancel(channel, peer.now)
    (write,) = peer.core.poll_actions()
    assert isinstance(write, WriteStream)
    assert decode(write.data) == [RouteTo(channel), CancelSender()]
    assert not peer.core.output.is_waiting


def test_dropped_datagrams_take_no_memory_while_nothing_leaves() -> None:
    """AQ-UNREL-6: an application may send more than leaves, for as long as it likes."""
    out = Outgoing(1_000)
    out.version_acked = True
    out.add_to_datagram(16, 0, plain(0, b"kept").encode())
    for number in range(5_000):
        out.add_to_datagram(8, number, plain(number, bytes(900)).encode())
        if number > 3:
            out.drop_oldest_datagram(8)
    assert len(out._datagrams) < 20
    assert len(out.poll()) == 5


def test_a_message_is_cut_where_the_room_ends_and_arrives_whole() -> None:
    pair = Pair()
    message = bytes(range(256)) * 300
    pair.client.send(ENTRYPOINT, message, pair.now)
    pair.client.send(ENTRYPOINT, b"last", pair.now)
    writes = 0
    while pair.client.output.is_waiting:
        for action in pair.client.poll_actions(room_of(1_777)):
            assert isinstance(action, WriteStream)
            assert len(action.data) <= 1_777
            writes += 1
            pair.server.handle_stream_data(action.stream, action.data, action.fin, pair.now)
    assert writes > 40
    assert payloads(pair.server.take(ENTRYPOINT, 10, pair.now)) == [message, b"last"]


@given(
    sizes=st.lists(st.integers(0, 2_000), min_size=1, max_size=30),
    cuts=st.lists(st.integers(1, 3_000), min_size=1, max_size=20),
)
def test_a_stream_keeps_its_bytes_however_it_is_cut(sizes: list[int], cuts: list[int]) -> None:
    out = Outgoing(1_000)
    flow = SenderFlow()
    stream = out.open(8, flow)
    expected = [RouteTo(8)]
    data = b""
    for number, size in enumerate(sizes):
        if stream.run is None:
            out.begin_run(stream, number)
        assert stream.run is not None
        stream.run.append(bytes([number]) * size)
        expected.append(MessageFrame(number, (), (), bytes([number]) * size))  # type: ignore[arg-type]
        data += stream.take(cuts[number % len(cuts)])
    while not stream.is_empty:
        assert stream.size > 0
        data += stream.take(cuts[0])
    assert stream.size == 0
    assert decode(data)[-len(expected) :] == expected
