"""The queue of a receiver: order, sizes, batches, and memory proportional to the bytes sent."""

import gc
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aqueduct.protocol.queue import Queue, objects_in
from aqueduct.wire.frames import Attachment, MessageFrame, MessageRun
from tests.protocol.wires import GENEROUS, carrier, flatten, plain

packing = pytest.mark.parametrize("pack", [False, True])
MANY = 10**6


def run(first: int, *payloads: bytes) -> MessageRun:
    return MessageRun(first, list(payloads), sum(map(len, payloads)))


def messages(batch: list[MessageFrame | MessageRun]) -> list[MessageFrame]:
    return [message for message in flatten(batch) if isinstance(message, MessageFrame)]


def numbers(batch: list[MessageFrame | MessageRun]) -> list[int]:
    return [message.number for message in messages(batch)]


def add(
    queue: Queue, entry: MessageFrame | MessageRun, *, pack: bool, stretches: int = MANY
) -> bool:
    if isinstance(entry, MessageFrame):
        queue.add_message(entry, entry.size, pack=pack)
        return True
    return queue.add_run(entry, pack=pack, max_stretches=stretches)


def memory_of(fill: Callable[[Queue], None]) -> int:
    """Return the bytes of memory of a filled queue."""
    gc.collect()
    tracemalloc.start()
    try:
        queue = Queue()
        fill(queue)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@packing
def test_messages_are_taken_in_order_of_arrival(pack: bool) -> None:
    queue = Queue()
    for entry in (run(0, b"a", b"b"), carrier(2, 8), run(3, b"c")):
        add(queue, entry, pack=pack)
    expected = [plain(0, b"a"), plain(1, b"b"), carrier(2, 8), plain(3, b"c")]
    assert messages(queue.take(9, GENEROUS)) == expected
    assert not queue
    assert queue.size == queue.count == 0


@packing
@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_take_returns_at_most_the_limit(pack: bool, step: int) -> None:
    queue = Queue()
    rich = carrier(3, 8, payload=b"dddd")
    for entry in (run(0, b"a", b"bb", b"ccc"), rich, run(4, b"", b"", b"", b"e")):
        add(queue, entry, pack=pack)
    assert queue.size == 1 + 2 + 3 + rich.size + 1
    taken = []
    while queue:
        batch = queue.take(step, GENEROUS)
        assert 1 <= len(messages(batch)) <= step
        taken += numbers(batch)
    assert taken == list(range(8))
    assert queue.size == queue.count == 0


@pytest.mark.parametrize("limit", [0, -1])
@packing
def test_take_with_a_limit_of_zero_or_less_returns_nothing(pack: bool, limit: int) -> None:
    queue = Queue()
    add(queue, run(0, b"a", b""), pack=pack)
    assert queue.take(limit, GENEROUS) == []
    assert numbers(queue.take(2, GENEROUS)) == [0, 1]


def test_the_size_shrinks_as_a_run_is_taken_in_parts() -> None:
    queue = Queue()
    add(queue, run(5, b"a", b"bb", b"ccc"), pack=False)
    assert queue.take(1, GENEROUS) == [run(5, b"a")]
    assert queue.size == 5
    assert queue.take(1, GENEROUS) == [run(6, b"bb")]
    assert (queue.size, queue.count) == (3, 1)


def test_consecutive_runs_are_merged() -> None:
    queue = Queue()
    for number in range(100):
        add(queue, run(number, b"x"), pack=False)
    assert queue.take(100, GENEROUS) == [run(0, *[b"x"] * 100)]


@packing
def test_a_packed_message_is_unpacked_unchanged(pack: bool) -> None:
    queue = Queue()
    headers = ((b"k" * 300, b""), (b"", b"v"))
    rich = MessageFrame(2**64 - 1, headers, (Attachment(2**63 + 8, headers),), b"payload" * 100)
    add(queue, rich, pack=pack)
    assert queue.take(1, GENEROUS) == [rich]


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 1000])
def test_consecutive_empty_messages_take_no_memory(at_once: int) -> None:
    """AQ-FLOW-9: they are kept as a count."""
    queue = Queue()

    def fill(queue: Queue) -> None:
        for first in range(0, 20_000, at_once):
            assert add(queue, run(first, *[b""] * at_once), pack=False, stretches=1)

    assert memory_of(fill) < 20_000  # of 20,000 messages; other threads allocate too
    fill(queue)
    assert queue.size == queue.count == 0
    assert numbers(queue.take(3, GENEROUS)) == [0, 1, 2]
    assert numbers(queue.take(MANY, GENEROUS)) == list(range(3, 20_000))
    assert not queue


def test_empty_messages_are_not_kept_in_runs() -> None:
    """AQ-FLOW-9: the credit of one byte does not pay for thousands of empty messages."""

    def fill(queue: Queue) -> None:
        for number in range(0, 100_000, 1_000):
            assert add(queue, run(number, b"x", *[b""] * 999), pack=False)

    assert memory_of(fill) < 100 * 200


@pytest.mark.parametrize("size", [1, 2, 8, 63, 64, 100, 1000])
def test_memory_of_many_queued_messages_is_proportional_to_their_bytes(size: int) -> None:
    """AQ-FLOW-9: each in its own run, with a gap before it, which is the worst case."""

    def fill(queue: Queue) -> None:
        for number in range(2_000):
            payload = bytes([number % 256]) * size
            assert add(queue, run(3 * number, payload), pack=True)

    assert memory_of(fill) < 2_000 * 16 * max(size, 2)


def test_headers_of_many_queued_messages_are_kept_as_bytes() -> None:
    """AQ-FLOW-9."""

    def fill(queue: Queue) -> None:
        for number in range(200):
            add(queue, MessageFrame(number, ((b"", b""),) * 100, (), b""), pack=True)

    assert memory_of(fill) < 200 * 200 * 4


def test_stretches_of_empty_messages_are_bounded() -> None:
    """AQ-LIMIT-6: each gap in their numbers costs memory and no credit."""
    queue = Queue()
    for at in range(4):
        assert add(queue, run(2 * at, b""), pack=False, stretches=4)
    assert not add(queue, run(100, b""), pack=False, stretches=4)


def test_stretches_between_messages_with_content_are_not_bounded() -> None:
    """AQ-LIMIT-6 bounds gaps, and an ordered sender opens none."""
    for pack in (False, True):
        queue = Queue()
        for number in range(0, 2_000, 2):
            assert add(queue, run(number, b"x"), pack=pack, stretches=4)
            assert add(queue, run(number + 1, b""), pack=pack, stretches=4)
        assert numbers(queue.take(MANY, GENEROUS)) == list(range(2_000))


def test_taken_stretches_do_not_count() -> None:
    """AQ-LIMIT-6: also if the queue is never quite empty."""
    queue = Queue()
    for number in range(0, 2_000, 2):
        assert add(queue, run(number, b""), pack=False, stretches=4)
        if number:
            assert numbers(queue.take(1, GENEROUS)) == [number - 2]


def test_taking_one_message_takes_constant_time() -> None:
    """Moving all entries for each taken one would need minutes."""
    queue = Queue()
    for number in range(0, 400_000, 2):
        add(queue, run(number, b"x"), pack=False)
    for number in range(0, 400_000, 2):
        assert queue.take(1, GENEROUS)[0] == run(number, b"x")


# -- dropping --------------------------------------------------------------------------------------


@packing
def test_drop_returns_only_messages_with_channels(pack: bool) -> None:
    """AQ-CLOSE-4."""
    queue = Queue()
    for entry in (
        run(0, b"a", b""),
        carrier(2, 8),
        MessageFrame(3, ((b"k", b"v"),), (), b""),
        carrier(4, 16, 24),
        run(5, b"", b""),
    ):
        add(queue, entry, pack=pack)
    queue.take(1, GENEROUS)
    assert queue.drop(GENEROUS) == [carrier(2, 8), carrier(4, 16, 24)]
    assert not queue
    assert queue.size == queue.count == 0


# -- against a plain list --------------------------------------------------------------------------

payloads = st.one_of(st.just(b""), st.binary(max_size=3), st.binary(min_size=60, max_size=70))
runs = st.lists(payloads, min_size=1, max_size=6)


class QueueAgainstList(RuleBasedStateMachine):
    """Compares a queue with a list of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.model: list[MessageFrame] = []
        self.number = 0

    @rule(run_of=runs, pack=st.booleans(), gap=st.integers(0, 2))
    def add_run(self, run_of: list[bytes], pack: bool, gap: int) -> None:
        entry = run(self.number + gap, *run_of)
        self.model += entry.messages()
        self.number = entry.first + len(run_of)
        assert add(self.queue, entry, pack=pack)

    @rule(pack=st.booleans(), channels=st.integers(0, 2), payload=payloads)
    def add_message(self, pack: bool, channels: int, payload: bytes) -> None:
        attachments = tuple(Attachment(8 + 8 * at, ()) for at in range(channels))
        entry = MessageFrame(self.number, ((b"k", payload),), attachments, payload)
        self.number += 1
        self.model.append(entry)
        add(self.queue, entry, pack=pack)

    @rule(limit=st.integers(-1, 12))
    def take(self, limit: int) -> None:
        batch = messages(self.queue.take(limit, GENEROUS))
        expected = self.model[: max(limit, 0)]
        assert batch == expected
        del self.model[: len(expected)]

    @rule()
    def drop(self) -> None:
        assert self.queue.drop(GENEROUS) == [m for m in self.model if m.attachments]
        self.model.clear()
        self.queue = Queue()

    @invariant()
    def the_size_is_that_of_the_messages(self) -> None:
        assert self.queue.size == sum(message.size for message in self.model)
        assert bool(self.queue) is bool(self.model)
        assert 0 <= self.queue.count <= sum(map(objects_in, self.model))
        if not self.queue:
            assert self.queue.count == 0


TestQueueAgainstList = QueueAgainstList.TestCase


@given(st.lists(runs, max_size=10), st.booleans())
def test_an_empty_queue_counts_nothing(entries: list[list[bytes]], pack: bool) -> None:
    queue = Queue()
    number = 0
    for entry in entries:
        add(queue, run(number, *entry), pack=pack)
        number += len(entry) + 1
    queue.take(MANY, GENEROUS)
    assert not queue
    assert queue.size == queue.count == 0
