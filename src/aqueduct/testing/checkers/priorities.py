"""Priorities: what leaves first, and that no class of messages starves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aqueduct.protocol.events import SenderEnded
from aqueduct.testing.checkers.base import Violation, checker
from aqueduct.testing.checkers.facts import RunFacts
from aqueduct.testing.checkers.rules import NEVER
from aqueduct.testing.checkers.subjects import StreamFacts
from aqueduct.testing.record import (
    CommandCalled,
    EventRaised,
    FrameArrived,
    FrameSent,
    MessageSent,
    Polled,
    RecordEntry,
    StreamEnded,
)
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    AckVersion,
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    Dequeued,
    ForgetChannel,
    MessageFrame,
)

CYCLE = 16
"""Quanta in which each class that waits has a turn (AQ-PRIO-4)."""
CLASSES = 8
DEFAULT = 4
LARGEST_DATAGRAM = 1_200

URGENT = (
    AckVersion,
    ConnectionHeaders,
    CancelSender,
    CloseReceiver,
    ForgetChannel,
    AckReliable,
    AckNackUnreliable,
    Dequeued,
)
"""Frames that carry no message and never wait for one."""


@checker
def urgent_frames_first(facts: RunFacts) -> Iterator[Violation]:
    """Frames that carry no message leave before what else the transport takes (AQ-PRIO-2)."""
    bulk: list[FrameSent | None] = [None, None]
    for entry in facts.record.entries:
        if isinstance(entry, Polled):
            bulk[entry.side] = None
        elif isinstance(entry, FrameSent):
            before = bulk[entry.side]
            if isinstance(entry.frame, MessageFrame):
                bulk[entry.side] = entry
            elif isinstance(entry.frame, URGENT) and before is not None:
                text = f"{type(entry.frame).__name__} left behind a message on {before.channel:#x}"
                yield Violation(text, entry.time, entry.side, entry.channel)
                bulk[entry.side] = None


@dataclass
class _Stretch:
    """What left since a class began to wait."""

    total: int = 0
    lower: dict[int, int] = field(default_factory=dict)
    """Bytes of the less urgent classes."""
    passed: int = 0
    """Bytes of messages since something of the class itself left. Datagrams do not count: a
    transport without room for messages still takes them."""


def _carries_messages(stream: StreamFacts) -> bool:
    """Return whether a stream carries messages, or the first of them is not complete."""
    if any(isinstance(frame, MessageFrame) for frame in stream.routed):
        return True
    is_finished = stream.ended < NEVER and stream.reset is None
    return not stream.routed and not is_finished and stream.number >= 0


class _WaitingMessages:
    """The messages of one side that wait, and what leaves instead."""

    def __init__(self, facts: RunFacts, side: Side) -> None:
        self.side = side
        self.quantum = facts.record.quanta[side]
        self.channels: dict[int, set[int]] = {}
        """By channel: the reliable messages that have not left."""
        self.priorities: dict[int, int] = {ENTRYPOINT: DEFAULT}
        self.streams = {
            stream.number: stream.channel
            for stream in facts.streams.values()
            if stream.side == side and _carries_messages(stream)
        }
        """The channel of each stream of messages."""
        self.poll: Polled | None = None
        self.classes: set[int] = set()
        """The classes that waited when it began."""
        self.stretches: dict[int, _Stretch] = {}

    def drop(self, channel: int) -> None:
        self.channels.pop(channel, None)

    def waiting(self) -> set[int]:
        return {self.priorities.get(each, DEFAULT) for each, left in self.channels.items() if left}

    def begin(self, poll: Polled) -> None:
        self.poll = poll
        self.classes = self.waiting()

    def end(self) -> Iterator[Violation]:
        """Judge a poll once it is known what left completely."""
        poll, self.poll = self.poll, None
        if poll is None:
            return
        waited = self.classes & self.waiting()
        for priority in [each for each in self.stretches if each not in waited]:
            del self.stretches[priority]
        left: dict[int, int] = {}
        for stream, size in poll.writes:
            if stream < 0 or stream in self.streams:
                channel = self.streams.get(stream, -1)
                of = -1 if stream < 0 else self.priorities.get(channel, DEFAULT)
                left[of] = left.get(of, 0) + size
        total = sum(size for _, size in poll.writes)
        for priority in sorted(waited):
            stretch = self.stretches.setdefault(priority, _Stretch())
            stretch.total += total
            stretch.passed += sum(size for of, size in left.items() if of >= 0)
            if priority in left:
                stretch.passed = 0
            for of, size in left.items():
                if of > priority:
                    stretch.lower[of] = stretch.lower.get(of, 0) + size
            yield from self._judge(poll, priority, stretch)

    def _judge(self, poll: Polled, priority: int, stretch: _Stretch) -> Iterator[Violation]:
        if stretch.passed > CYCLE * self.quantum + LARGEST_DATAGRAM:
            text = f"class {priority} starves: {stretch.passed} bytes left meanwhile"
            yield Violation(text, poll.time, self.side)
            stretch.passed = 0
        for of, size in stretch.lower.items():
            # Its own quantum in each cycle, and parts of one at both ends.
            if size > stretch.total / CYCLE + 2 * self.quantum + LARGEST_DATAGRAM:
                text = (
                    f"{size} bytes of class {of} left while class {priority} waited, "
                    f"of {stretch.total}"
                )
                yield Violation(text, poll.time, self.side)
                stretch.lower = {}
                return


@checker
def classes_in_order(facts: RunFacts) -> Iterator[Violation]:
    """A more urgent class leaves first, but each has a turn in each cycle (AQ-PRIO-3, 4)."""
    if facts.record.backlog:
        return  # messages may wait for stream credit, and turns are as long as suits the path
    sides = (_WaitingMessages(facts, Side.CLIENT), _WaitingMessages(facts, Side.SERVER))
    for entry in facts.record.entries:
        side = sides[entry.side]
        if isinstance(entry, StreamEnded):
            continue
        if isinstance(entry, FrameSent):
            if isinstance(entry.frame, MessageFrame) and not entry.in_datagram:
                side.channels.get(entry.channel, set()).discard(entry.frame.number)
            continue
        yield from side.end()
        _follow(side, entry)


def _follow(side: _WaitingMessages, entry: RecordEntry) -> None:
    if isinstance(entry, Polled):
        side.begin(entry)
    elif isinstance(entry, MessageSent):
        if entry.reliable:
            side.channels.setdefault(entry.channel, set()).add(entry.number)
        for made in entry.attached:
            side.priorities[made.channel] = made.priority
    elif isinstance(entry, CommandCalled):
        if entry.verb == "set priority":
            side.priorities[entry.channel] = int(entry.detail)
            side.stretches.clear()
        elif entry.verb == "cancel":
            side.drop(entry.channel)
    elif isinstance(entry, FrameArrived):
        if isinstance(entry.sent.frame, CloseReceiver | ForgetChannel):
            side.drop(entry.sent.channel)
    elif isinstance(entry, EventRaised) and isinstance(entry.event, SenderEnded):
        side.drop(entry.event.channel)
