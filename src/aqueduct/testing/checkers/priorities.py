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
    SentUnreliable,
)

CYCLE = 16
"""Quanta in which each class that waits has a turn (AQ-PRIO-4)."""
CLASSES = 8
DEFAULT = 4
LARGEST_DATAGRAM = 1_200
LARGEST_HEAD = 64
"""More than VERSION and ROUTE_TO take."""

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


DATAGRAMS = -1
"""What comes before all classes."""


class _WaitingMessages:
    """The messages of one side that wait, and what leaves instead."""

    def __init__(self, facts: RunFacts, side: Side) -> None:
        self.side = side
        self.quantum = facts.record.quanta[side]
        self.channels: dict[int, set[int]] = {}
        """By channel: the reliable messages that have not left."""
        self.will_leave = {
            (entry.channel, entry.frame.number)
            for entry in facts.record.entries
            if isinstance(entry, FrameSent)
            and entry.side == side
            and entry.in_datagram
            and isinstance(entry.frame, MessageFrame)
        }
        """The unreliable messages that are not dropped before they leave (AQ-UNREL-6)."""
        self.datagrams: set[tuple[int, int]] = set()
        """Those of them that have not left."""
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
        self.backlogged: set[int] = set()
        """The channels that waited when it began."""
        self.shares: dict[int, dict[int, int]] = {}
        """By channel that waits: the bytes of each channel of its class that left meanwhile."""

    def drop(self, channel: int) -> None:
        self.channels.pop(channel, None)

    def waiting(self) -> set[int]:
        classes = {self.class_of(each) for each, left in self.channels.items() if left}
        return classes | {DATAGRAMS} if self.datagrams else classes

    def class_of(self, channel: int) -> int:
        return self.priorities.get(channel, DEFAULT)

    def begin(self, poll: Polled) -> None:
        self.poll = poll
        self.classes = self.waiting()
        self.backlogged = {channel for channel, left in self.channels.items() if left}

    def end(self) -> Iterator[Violation]:
        """Judge a poll once it is known what left completely."""
        poll, self.poll = self.poll, None
        if poll is None:
            return
        waited = self.classes & self.waiting()
        for priority in [each for each in self.stretches if each not in waited]:
            del self.stretches[priority]
        left: dict[int, int] = {}
        by_channel: dict[int, int] = {}
        for stream, size in poll.writes:
            if stream < 0:
                left[DATAGRAMS] = left.get(DATAGRAMS, 0) + size
            elif stream in self.streams:
                channel = self.streams[stream]
                by_channel[channel] = by_channel.get(channel, 0) + size
                of = self.class_of(channel)
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
        yield from self._judge_shares(poll, by_channel)

    def _judge_shares(self, poll: Polled, left: dict[int, int]) -> Iterator[Violation]:
        """Compare what left of a channel that waited with the others of its class."""
        waited = {each for each in self.backlogged if self.channels.get(each)}
        self.shares = {each: share for each, share in self.shares.items() if each in waited}
        for channel in sorted(waited):
            share = self.shares.setdefault(channel, {channel: 0})
            for other, size in left.items():
                if self.class_of(other) == self.class_of(channel):
                    share[other] = share.get(other, 0) + size
            most = max(share, key=lambda each: (share[each], -each))
            # Both may be in the middle of a turn.
            if share[most] > share[channel] + 2 * self.quantum + LARGEST_HEAD:
                text = (
                    f"{share[most]} bytes of {most:#x} left while it waited in the same class, "
                    f"and {share[channel]} of it"
                )
                yield Violation(text, poll.time, self.side, channel)
                del self.shares[channel]

    def _judge(self, poll: Polled, priority: int, stretch: _Stretch) -> Iterator[Violation]:
        if stretch.passed > CYCLE * self.quantum + LARGEST_DATAGRAM:
            text = f"class {priority} starves: {stretch.passed} bytes left meanwhile"
            yield Violation(text, poll.time, self.side)
            stretch.passed = 0
        for of, size in stretch.lower.items():
            # Its own quantum in each cycle, and parts of one at both ends.
            if size > stretch.total / CYCLE + 2 * self.quantum + LARGEST_DATAGRAM:
                what = "datagrams" if priority == DATAGRAMS else f"class {priority}"
                text = f"{size} bytes of class {of} left while {what} waited, of {stretch.total}"
                yield Violation(text, poll.time, self.side)
                stretch.lower = {}
                return


@checker
def classes_in_order(facts: RunFacts) -> Iterator[Violation]:
    """What is more urgent leaves first, but each class has a turn in each cycle (AQ-PRIO-3, 4).

    Within a class the senders have equal shares.
    """
    if facts.record.backlog:
        return  # messages may wait for stream credit, and turns are as long as suits the path
    sides = (_WaitingMessages(facts, Side.CLIENT), _WaitingMessages(facts, Side.SERVER))
    for entry in facts.record.entries:
        side = sides[entry.side]
        if isinstance(entry, StreamEnded):
            continue
        if isinstance(entry, FrameSent):
            if isinstance(entry.frame, MessageFrame) and entry.in_datagram:
                side.datagrams.discard((entry.channel, entry.frame.number))
            elif isinstance(entry.frame, MessageFrame):
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
        elif (entry.channel, entry.number) in side.will_leave:
            side.datagrams.add((entry.channel, entry.number))
        for made in entry.attached:
            side.priorities[made.channel] = made.priority
    elif isinstance(entry, CommandCalled):
        if entry.verb == "set priority":
            side.priorities[entry.channel] = int(entry.detail)
            side.stretches.clear()
            side.shares.clear()
        elif entry.verb == "cancel":
            side.drop(entry.channel)
    elif isinstance(entry, FrameArrived):
        if isinstance(entry.sent.frame, CloseReceiver | ForgetChannel):
            side.drop(entry.sent.channel)
    elif isinstance(entry, EventRaised) and isinstance(entry.event, SenderEnded):
        side.drop(entry.event.channel)


@checker
def announced_behind_datagrams(facts: RunFacts) -> Iterator[Violation]:
    """SENT_UNRELIABLE counts only messages whose datagrams have left or never will (AQ-PRIO-6)."""
    announced: dict[int, int] = {}
    for entry in facts.record.entries:
        if not isinstance(entry, FrameSent):
            continue
        frame = entry.frame
        if isinstance(frame, SentUnreliable):
            announced[entry.channel] = announced.get(entry.channel, 0) + frame.count
        elif isinstance(frame, MessageFrame) and entry.in_datagram:
            if frame.number < announced.get(entry.channel, 0):
                text = "left in a datagram behind its announcement"
                yield Violation(text, entry.time, entry.side, entry.channel, frame.number)
