"""The core takes linear time: work grows with the input, not with its square.

The tests count the lines of `aqueduct` that run, never seconds: once for a number of messages or
channels, and once for four times as many. Copies that a single line makes do not show in that
count; where one matters, a test looks at the object instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from aqueduct.errors import CloseCode, WouldBlock
from aqueduct.protocol import connection, outgoing
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.wire.chanid import ENTRYPOINT
from tests.protocol.wires import GIVE_RECEIVER, GIVE_SENDER, Pair

pytestmark = pytest.mark.skipif(
    not str(connection.__file__).endswith(".py"), reason="compiled code cannot be traced"
)

CHANNELS = int(os.environ.get("COMPLEXITY_CHANNELS", "600"))
"""The most channels; `make soak` has 100,000."""

FACTOR = 4
SLACK = 1.25
"""Slack above linear growth, for logarithms and periodic work."""

OURS = str(outgoing.__file__).rpartition("protocol")[0]
ENOUGH = Config(limits=Limits(max_channels=200_000))


def steps(work: Callable[[], object]) -> int:
    """Return how many lines of `aqueduct` ran."""
    count = 0

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        return line(frame, event, arg) if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


Work = Callable[[], object]


def pair_with_channels(count: int, attach: Attach) -> tuple[Pair, list[int]]:
    """Return a connection with channels whose other halves the server's application holds."""
    pair = Pair(ENOUGH, ENOUGH)
    channels: list[int] = []
    while len(channels) < count:
        several = [attach] * min(100, count - len(channels))
        channels += pair.client.send_message(ENTRYPOINT, b"", pair.now, attach=several).channels
    pair.run()
    pair.server.take(ENTRYPOINT, count, pair.now)
    pair.wait(0.02)
    pair.forget_events()
    return pair, channels


def send_plain(count: int) -> Work:
    pair = Pair()

    def work() -> None:
        for _ in range(count):
            pair.client.send(ENTRYPOINT, b"x", pair.now)
        pair.run()

    return work


def send_alternately(count: int) -> Work:
    pair = Pair()

    def work() -> None:
        for _ in range(count // 2):
            pair.client.send(ENTRYPOINT, b"x", pair.now)
            pair.client.send_message(ENTRYPOINT, b"x", pair.now, headers=((b"k", b"v"),))
        pair.run()

    return work


def send_unordered_and_ack(count: int) -> Work:
    pair = Pair()
    channel = pair.give_receiver(Mode.UNORDERED)

    def work() -> None:
        for _ in range(count):
            pair.client.send(channel, b"x", pair.now)
        pair.wait(0.1)

    return work


def cancel_unacked(count: int) -> Work:
    pair = Pair()
    channel = pair.give_receiver(Mode.UNORDERED)
    for _ in range(count):
        pair.client.send(channel, b"x", pair.now)
    pair.to_server.collect()

    def work() -> None:
        pair.client.cancel(channel, pair.now)
        pair.wait(0.1)

    return work


def send_without_credit(count: int) -> Work:
    """Datagrams that are dropped, the oldest first."""
    pair = Pair(server_config=Config(limits=Limits(channel_window=1_000)))
    channel = pair.give_receiver(Mode.UNRELIABLE)

    def work() -> None:
        for _ in range(count):
            pair.client.send(channel, bytes(100), pair.now)
        pair.wait(0.1)

    return work


def close_a_full_receiver(count: int) -> Work:
    pair = Pair()
    channel = pair.give_receiver()
    for number in range(count):
        headers = ((b"k", b"v"),) if number % 2 else ()
        pair.client.send_message(channel, b"x", pair.now, headers=headers)
    pair.run()

    def work() -> None:
        pair.server.close(channel, pair.now)
        pair.wait(0.1)

    return work


def open_finish_and_close(count: int) -> Work:
    pair, channels = pair_with_channels(count, GIVE_RECEIVER)

    def work() -> None:
        for channel in channels:
            pair.client.send(channel, b"x", pair.now)
            pair.client.finish(channel, pair.now)
        pair.run()
        for channel in channels:
            pair.server.take(channel, 1, pair.now)
        pair.wait(0.1)
        assert pair.client.channel_count == pair.server.channel_count == 1

    return work


def open_channels(count: int) -> Work:
    return lambda: pair_with_channels(count, GIVE_SENDER)


def cancel_channels(count: int) -> Work:
    pair, channels = pair_with_channels(count, GIVE_RECEIVER)

    def work() -> None:
        for channel in channels:
            pair.client.cancel(channel, pair.now)
        pair.wait(0.1)
        assert pair.server.channel_count == 1

    return work


def close_channels(count: int) -> Work:
    pair, channels = pair_with_channels(count, GIVE_SENDER)

    def work() -> None:
        for channel in channels:
            pair.client.close(channel, pair.now)
        pair.wait(0.1)
        assert pair.server.channel_count == 1

    return work


def lose_channels(count: int) -> Work:
    """The receiver of the carriers is closed before they arrive."""
    pair = Pair(ENOUGH, ENOUGH)
    pair.to_server.hold_everything()
    for _ in range(count // 2):
        attach = [GIVE_SENDER, Attach(Give.RECEIVER)]
        pair.client.send_message(ENTRYPOINT, b"", pair.now, attach=attach)

    def work() -> None:
        pair.server.close(ENTRYPOINT, pair.now)
        pair.run()
        pair.to_server.release()
        pair.wait(2.0)
        assert pair.client.channel_count == pair.server.channel_count == 0

    return work


def end_the_connection(count: int) -> Work:
    pair, channels = pair_with_channels(count, GIVE_RECEIVER)
    for channel in channels:
        pair.client.send(channel, b"x", pair.now)

    def work() -> None:
        pair.client.close_connection(CloseCode.NO_ERROR, "", pair.now)
        pair.run()

    return work


def wait_for_the_connection_window(count: int) -> Work:
    """Every channel waits for a full window, gives up, waits again and is woken."""
    limits = Limits(connection_window=1_000, max_channels=200_000)
    pair, channels = pair_with_channels(count, GIVE_RECEIVER)
    pair.client._context.credit.peer_limits = limits
    pair.client._context.credit.send_window.open(1_000, 0, 0)
    full, *others = channels
    pair.client.send(full, bytes(1_000), pair.now)
    pair.run()

    def work() -> None:
        for _ in range(2):
            for channel in others:
                with pytest.raises(WouldBlock):
                    pair.client.send(channel, b"x", pair.now)
            for channel in others[1:]:
                pair.client.give_up(channel)
        pair.server.take(full, 1, pair.now)
        pair.wait(0.1)

    return work


WORKS = [
    (send_plain, 8_000),
    (send_alternately, 2_000),
    (send_unordered_and_ack, 800),
    (cancel_unacked, 800),
    (send_without_credit, 800),
    (close_a_full_receiver, 1_600),
    (open_channels, CHANNELS),
    (open_finish_and_close, CHANNELS),
    (cancel_channels, CHANNELS),
    (close_channels, CHANNELS),
    (lose_channels, CHANNELS),
    (end_the_connection, CHANNELS),
    (wait_for_the_connection_window, CHANNELS),
]


@pytest.mark.parametrize(
    ("prepare", "count"), WORKS, ids=[prepare.__name__ for prepare, _ in WORKS]
)
def test_work_is_linear_in_the_number_of_messages_or_channels(
    prepare: Callable[[int], Work], count: int
) -> None:
    few, many = steps(prepare(count // FACTOR)), steps(prepare(count))
    assert many < SLACK * FACTOR * few, f"{many} steps for {count}, {few} for a quarter of it"


def test_a_run_of_messages_is_appended_in_place() -> None:
    """A copy per run would make alternating plain and other messages quadratic."""
    out = Outgoing(1_150)
    stream = out.open(ENTRYPOINT)
    chunks = stream.chunks
    for number in range(10):
        out.begin_run(stream, 2 * number).append(b"plain")
        out.write(stream, b"with headers")
    assert stream.chunks is chunks
