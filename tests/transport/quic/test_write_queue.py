"""The queue of writes for QUIC: its order, resets, and writes that wait for stream credit."""

from __future__ import annotations

from aqueduct.transport.quic.write_queue import Write, WriteQueue


def queue_of(*streams: int) -> WriteQueue:
    queue = WriteQueue()
    for stream in streams:
        queue.waiting.append(Write(stream, b"1234", False, True))
    return queue


def drained(queue: WriteQueue) -> list[int]:
    """Take all writes, and return their streams in order."""
    streams = []
    while queue.waiting:
        first = queue.waiting[0]
        assert isinstance(first, Write)
        if first.stream not in queue.dropped:
            streams.append(first.stream)
        queue.take()
    return streams


def test_an_empty_queue_is_false() -> None:
    queue = WriteQueue()
    assert not queue
    queue.resets.append((2, 0))
    assert queue
    queue.resets.clear()
    queue.unopened[True][1] = [Write(1, b"x", True, True)]
    assert queue
    queue.clear()
    assert not queue


def test_the_size_counts_bytes_that_were_not_handed_to_quic() -> None:
    queue = queue_of(1, 2)
    first = queue.waiting[0]
    assert isinstance(first, Write)
    first.sent = 3
    queue.waiting.append(b"datagram")
    queue.unopened[False][5] = [Write(5, b"123456", True, False)]
    assert queue.size == 1 + 4 + 8 + 6


def test_writes_of_a_dropped_stream_are_skipped_and_then_forgotten() -> None:
    queue = queue_of(1, 2, 1, 3)
    queue.drop(1)
    queue.waiting.append(Write(4, b"", True, True))
    assert drained(queue) == [2, 3, 4]
    assert not queue.dropped


def test_a_dropped_stream_does_not_wait_for_credit_any_more() -> None:
    queue = queue_of(1)
    first = queue.waiting[0]
    assert isinstance(first, Write)
    queue.postpone(first)
    assert list(queue.unopened[True]) == [1]
    queue.drop(1)
    assert not queue
    assert not queue.dropped


def test_writes_that_waited_for_credit_come_first_in_their_order() -> None:
    queue = queue_of(7, 8)
    queue.drop(8)
    queue.put_first([Write(1, b"", False, False), Write(2, b"", False, False)])
    assert drained(queue) == [1, 2, 7]
    assert not queue.dropped


def test_a_cleared_queue_forgets_dropped_streams() -> None:
    queue = queue_of(1, 2)
    queue.drop(1)
    queue.clear()
    queue.waiting.append(Write(1, b"", False, False))
    assert drained(queue) == [1]
