"""A peer, an application and a network that act at random, from a seed.

Most of their actions are valid in the current state of the core, which they inspect: otherwise
runs would end after a few steps. Some actions are invalid on purpose.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from aqueduct.errors import (
    ChannelClosed,
    CloseCode,
    LocalProtocolError,
    MessageTooLarge,
    ReceiverClosed,
    WouldBlock,
)
from aqueduct.protocol.actions import (
    Action,
    CloseConnection,
    ResetStream,
    SendDatagram,
    WriteStream,
)
from aqueduct.protocol.config import INITIAL_LIMITS, Config, Limits
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import ConnectionEnded, Event
from aqueduct.protocol.half import Ownership
from aqueduct.protocol.receiver import ReceivingHalf
from aqueduct.protocol.sender import SendingHalf
from aqueduct.wire.chanid import ENTRYPOINT, Side, channel_id, creator_of, is_oneshot
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
    Frame,
    MessageFrame,
    RouteTo,
    SentUnreliable,
    Version,
)
from aqueduct.wire.primitives import MAX_VARINT, HeaderPairs
from tests.protocol.wires import Direction, credit, encode, plain, stated

DOCUMENTED = (WouldBlock, MessageTooLarge, ChannelClosed, ReceiverClosed, LocalProtocolError)
"""What a command may raise. Any other error is a bug, and so is any error raised by an input."""

ANY_FRAME: list[Frame] = [
    Version(),
    Version(b"another"),
    AckVersion(),
    ConnectionHeaders(()),
    plain(0),
    plain(1, b"x"),
    MessageFrame(2, ((b"k", b"v"),), (Attachment(8, ()), Attachment(11, ())), b""),
    SentUnreliable(1),
    FinishSender(1),
    CancelSender(),
    AckReliable(((0, 1),)),
    AckNackUnreliable((0, 1)),
    CloseReceiver(),
    ForgetChannel(),
    Dequeued(1),
]

SIZES = [0, 0, 0, 1, 1, 5, 90, 300, 20_000]
STRANGE_NUMBERS = [0, 1, 7, 2**32, MAX_VARINT - 1, MAX_VARINT]


class Application:
    """Gives commands to a core: mostly for halves it has, any half with ``strange``."""

    def __init__(self, core: ConnectionCore, random: Random, *, strange: float) -> None:
        self.core = core
        self.random = random
        self.strange = strange

    def wind_up(self, now: float) -> None:
        """Finish all senders and take everything from all receivers."""
        for half in list(self.core._channels.halves.values()):
            if half.owner is Ownership.APPLICATION:
                self.core.finish(half.channel, now)
                self.core.take(half.channel, 999, now)

    def step(self, now: float) -> None:
        """Give one command, which may raise documented errors only."""
        with suppress(*DOCUMENTED):
            self._command(now)

    def _channel(self, kind: type[SendingHalf | ReceivingHalf]) -> int:
        random = self.random
        if random.random() < self.strange:
            return random.choice([*self.core._channels.halves, random.randrange(64)])
        known = [
            half.channel
            for half in self.core._channels.halves.values()
            if isinstance(half, kind) and half.owner is Ownership.APPLICATION
        ]
        return random.choice(known) if known else ENTRYPOINT

    def _command(self, now: float) -> None:
        core, random = self.core, self.random
        if random.random() < self.strange / 10:
            self._odd_command(now)
            return
        dice = random.randrange(40)
        if dice < 8:
            core.send(self._channel(SendingHalf), b"x" * random.choice(SIZES), now)
        elif dice < 18:
            attach = [self._attach() for _ in range(random.randrange(3))]
            payload = b"y" * random.choice(SIZES)
            headers = self._headers()
            core.send_message(
                self._channel(SendingHalf), payload, now, headers=headers, attach=attach
            )
        elif dice < 30:
            core.take(self._channel(ReceivingHalf), random.choice([-1, 0, 1, 1, 3, 99]), now)
        elif dice < 36:
            self._end_one(now)
        elif dice < 39:
            core.set_mode(self._channel(SendingHalf), random.choice(list(Mode)))
        else:
            credit(core, self._channel(SendingHalf))

    def _odd_command(self, now: float) -> None:
        core, random = self.core, self.random
        dice = random.randrange(6)
        if dice < 3:
            core.accept(random.choice([(), ((b"aqueduct-x", b""),), ((b"k", b"v" * 9_000),)]), now)
        elif dice < 5:
            core.refuse(random.choice([CloseCode.INTERNAL, CloseCode.GOING_AWAY]), "no", now)
        else:
            core.send(ENTRYPOINT, b"x" * 70_000, now)

    def _end_one(self, now: float) -> None:
        random = self.random
        end = random.choice([self.core.finish, self.core.cancel, self.core.close])
        channel = self._channel(ReceivingHalf if end == self.core.close else SendingHalf)
        if channel != ENTRYPOINT or random.random() < 0.05:
            end(channel, now)

    def _attach(self) -> Attach:
        random = self.random
        give, mode = random.choice(list(Give)), random.choice(list(Mode))
        return Attach(give, random.random() < 0.2, self._headers(), mode)

    def _headers(self) -> HeaderPairs:
        return self.random.choice([(), (), ((b"k", b"v"),), ((b"k", b"v" * 9_000),)])


@dataclass
class Lane:
    """What the peer has sent on one channel."""

    numbers: int = 0
    """The next number of messages in streams; some below it may be unused."""
    holes: list[int] = field(default_factory=list)
    datagrams: int = 0
    announced: int = 0
    total: int | None = None
    silent: bool = False
    """Whether it was cancelled, closed or forgotten, so that nothing more is sent."""
    control: int | None = None
    """The one stream for announcements, or for acks."""


class ChaoticPeer:
    """The other end of a core, which sends raw frames, most of them valid."""

    def __init__(self, core: ConnectionCore, random: Random, *, strange: float) -> None:
        self.core = core
        self.random = random
        self.strange = strange
        self.side = core.side.other
        self._lanes: dict[int, Lane] = {}
        self._next_stream = 0
        self._next_index = 1
        self._open: dict[int, int] = {}
        """Open streams, and the channel that each is routed to."""
        self._rest: dict[int, bytes] = {}
        """The rest of the data of each stream."""

    def hello(self, now: float) -> None:
        """Send the version; the core holds what follows until the headers."""
        frames: list[Frame] = [Version()]
        if self.core.side == Side.CLIENT:
            frames.append(AckVersion())
        self.core.handle_stream_data(self._stream(-1), encode(frames), False, now)

    def greet(self, now: float) -> None:
        """Send the headers; the channels open once a server accepts."""
        headers = ConnectionHeaders(stated(self.random.choice([INITIAL_LIMITS, NARROW])))
        self.core.handle_stream_data(self._stream(-1), encode([headers]), False, now)

    def step(self, now: float) -> None:
        """Act once; the core must not raise."""
        random = self.random
        halves = list(self.core._channels.halves.values())
        if self._is_strange():
            self._anything(now)
            return
        dice = random.randrange(40)
        if dice == 0 or not halves:
            channel = random.choice([self._new_channel(), random.randrange(80)])
            self._say(channel, [], now)
        elif dice < 6 and self._rest:
            stream = random.choice(list(self._rest))
            self.core.handle_stream_data(stream, self._rest.pop(stream), False, now)
        elif dice < 9 and self._open:
            self._end(random.choice(list(self._open)), now)
        else:
            half = random.choice(halves)
            lane = self._lanes.setdefault(half.channel, Lane())
            if lane.silent and not self._is_strange():
                return
            if isinstance(half, ReceivingHalf):
                self._to_receiver(half, lane, now)
            else:
                self._to_sender(half, lane, now)

    # -- frames

    def _anything(self, now: float) -> None:
        """Send any frame on any channel."""
        random = self.random
        channel = random.choice([*self.core._channels.halves, random.randrange(80)])
        frames: list[Frame] = random.choices(ANY_FRAME, k=random.choice([1, 2]))
        if random.random() < 0.7:
            frames.insert(0, RouteTo(channel))
        if random.random() < 0.3:
            self.core.handle_datagram(encode(frames), now)
        else:
            self.core.handle_stream_data(self._stream(-1), encode(frames), False, now)

    def _to_receiver(self, half: ReceivingHalf, lane: Lane, now: float) -> None:
        random = self.random
        dice = random.randrange(30)
        if dice < 12:
            messages = [self._message(half, lane) for _ in range(random.choice([1, 1, 3]))]
            frames: list[Frame] = [message for message in messages if message is not None]
            self._say(half.channel, frames, now, again=random.random() < 0.5)
        elif dice < 20:
            self._datagram(half, lane, now)
        elif dice < 25:
            if lane.total is None or self._is_strange():
                self._say_control(half, lane, [self._announcement(lane)], now)
        elif dice < 27:
            if lane.total is None or self._is_strange():
                announcement = self._announcement(lane)
                more = 0 if is_oneshot(half.channel) else random.choice([0, 0, 1])
                lane.total = self._odd(lane.numbers + more)
                if lane.total > lane.numbers:
                    lane.holes += range(lane.numbers, min(lane.total, lane.numbers + 9))
                self._say_control(half, lane, [announcement, FinishSender(lane.total)], now)
        elif dice == 27:
            if lane.total is None or self._is_strange():
                lane.silent = True
                self._say(half.channel, [CancelSender()], now)
        else:
            self._forget(half, lane, now)

    def _to_sender(self, half: SendingHalf, lane: Lane, now: float) -> None:
        random = self.random
        dice = random.randrange(18)
        frame: Frame
        if dice < 6:
            stop = random.randint(0, half.next_reliable)
            start = random.randint(0, stop)
            stop += 3 * self._is_strange()
            if start == stop:
                return
            frame = AckReliable(((start, stop),))
        elif dice < 11:
            room = (
                half.datagrams.announced - half.datagrams.decided
                if half.datagrams is not None
                else 0
            )
            acked = random.randint(0, room)
            nacked = random.randint(0, room - acked) + self._is_strange()
            if acked + nacked == 0:
                return
            frame = AckNackUnreliable((acked, nacked) if nacked else (acked,))
        elif dice < 16:
            undecided = sum(half.datagrams.sizes) if half.datagrams is not None else 0
            taken = random.randint(0, max(half.outstanding - undecided, 0))
            frame = Dequeued(taken + self._is_strange())
        elif dice == 16:
            frame = CloseReceiver()
            lane.silent = True
        else:
            self._forget(half, lane, now)
            return
        self._say_control(half, lane, [frame], now, cut=False)

    def _forget(self, half: SendingHalf | ReceivingHalf, lane: Lane, now: float) -> None:
        if creator_of(half.channel) == self.side and half.channel != ENTRYPOINT:
            lane.silent = True
            self._say(half.channel, [ForgetChannel()], now)

    def _message(self, half: ReceivingHalf, lane: Lane) -> MessageFrame | None:
        random = self.random
        if lane.holes and random.random() < 0.7:
            number = lane.holes.pop(random.randrange(len(lane.holes)))
        elif lane.total is None and not (is_oneshot(half.channel) and lane.numbers):
            number = lane.numbers
            if random.random() < 0.3 and not is_oneshot(half.channel):
                lane.holes.append(number)
                number += 1
            lane.numbers = number + 1
        elif self._is_strange():
            number = random.choice(STRANGE_NUMBERS)
        else:
            return None
        payload = b"z" * random.choice(SIZES)
        if half._held() + len(payload) > 50_000 and not self._is_strange():
            payload = b""
        if random.random() < 0.6:
            return plain(number, payload)
        channels = [self._new_channel() for _ in range(random.randrange(3))]
        if self._is_strange():
            channels.append(random.randrange(1, 80))
        attached = tuple(Attachment(channel, ()) for channel in dict.fromkeys(channels))
        return MessageFrame(number, ((b"k", b"v"),), attached, payload)

    def _datagram(self, half: ReceivingHalf, lane: Lane, now: float) -> None:
        random = self.random
        if is_oneshot(half.channel) and not self._is_strange():
            return
        first = lane.datagrams + random.choice([0, 0, 1, 2])
        count = random.choice([1, 1, 2])
        if lane.total is not None and first + count > lane.announced and not self._is_strange():
            return
        lane.datagrams = first + count
        first = self._odd(first)
        frames: list[Frame] = [
            plain(min(first + at, MAX_VARINT), b"d" * random.choice([0, 0, 1, 50]))
            for at in range(count)
        ]
        if random.random() < 0.2:
            attached = (Attachment(self._new_channel(), ()),)
            frames[-1] = MessageFrame(
                min(first + count - 1, MAX_VARINT), ((b"", b""),), attached, b""
            )
        self.core.handle_datagram(encode([RouteTo(half.channel), *frames]), now)

    def _announcement(self, lane: Lane) -> Frame:
        lane.datagrams += self.random.choice([0, 0, 1, 2]) if lane.datagrams else 0
        count = lane.datagrams - lane.announced
        lane.announced = lane.datagrams
        return SentUnreliable(self._odd(count))

    def _new_channel(self) -> int:
        random = self.random
        self._next_index += 1
        return channel_id(
            self.side, random.choice(list(Side)), random.random() < 0.1, self._next_index
        )

    def _is_strange(self) -> bool:
        return self.random.random() < self.strange

    def _odd(self, number: int) -> int:
        return self.random.choice(STRANGE_NUMBERS) if self._is_strange() else number

    # -- streams

    def _stream(self, channel: int) -> int:
        stream = self._next_stream
        self._next_stream += 1
        self._open[stream] = channel
        return stream

    def _say(self, channel: int, frames: list[Frame], now: float, *, again: bool = False) -> None:
        """Send frames on a new stream, or on one that was routed to the channel before."""
        streams = [stream for stream, leads_to in self._open.items() if leads_to == channel]
        if again and streams:
            self._write(self.random.choice(streams), encode(frames), now)
        else:
            self._write(self._stream(channel), encode([RouteTo(channel), *frames]), now)

    def _say_control(
        self,
        half: SendingHalf | ReceivingHalf,
        lane: Lane,
        frames: list[Frame],
        now: float,
        *,
        cut: bool = True,
    ) -> None:
        """Send frames on the control stream of a half, unless it has ended."""
        start: list[Frame] = []
        if lane.control is None or self._is_strange():
            lane.control = self._stream(half.channel)
            start = [RouteTo(half.channel)]
        if lane.control in self._open:
            self._write(lane.control, encode([*start, *frames]), now, cut=cut)

    def _write(self, stream: int, data: bytes, now: float, *, cut: bool = True) -> None:
        """Write a part of the data now and the rest later."""
        data = self._rest.pop(stream, b"") + data
        if self._is_strange():
            data += bytes([self.random.randrange(256)])
        if cut and self.random.random() < 0.15 and data:
            middle = self.random.randrange(len(data))
            self._rest[stream] = data[middle:]
            data = data[:middle]
        self.core.handle_stream_data(stream, data, False, now)

    def _end(self, stream: int, now: float) -> None:
        if self._open[stream] < 0:
            return
        rest = self._rest.pop(stream, b"")
        if self.random.random() < 0.3:
            self.core.handle_stream_reset(stream, 0x10, now)
        else:
            self.core.handle_stream_data(stream, rest, True, now)
        del self._open[stream]


class Watch:
    """Checks the invariants of a core."""

    def __init__(self, core: ConnectionCore) -> None:
        self.core = core
        self.over = False
        self._closed = False
        self._finished: set[int] = set()
        self._opened: set[int] = set()

    def check(self) -> list[Event]:
        """Check the invariants after a step, and return the events."""
        core = self.core
        assert core.held_bytes >= 0
        assert core._context.credit.send_window.outstanding >= 0
        assert all(half.outstanding >= 0 for half in self._senders())
        assert core._context.credit.receive_window.outstanding >= 0
        receivers = self._receivers()
        queues = [half._queue for half in receivers if half._queue is not None]
        assert core._context.queued_objects == sum(queue.count for queue in queues)
        assert core._context.credit.unreported == sum(half.unreported for half in receivers)
        assert set(core._context.credit.unreported_channels) <= {half.channel for half in receivers}
        assert set(core._context.blocked.sizes) <= {half.channel for half in self._senders()}
        assert not [text for text in core.leftovers() if "a count of" in text]
        timer = core.next_timer()
        events = core.poll_events()
        for event in events:
            assert not self.over, f"{event} after the end of the connection"
            self.over = isinstance(event, ConnectionEnded)
        if self.over:
            assert core.leftovers() == []
            assert core.channel_count == 0
            assert timer is None
        return events

    def _receivers(self) -> list[ReceivingHalf]:
        return [h for h in self.core._channels.halves.values() if isinstance(h, ReceivingHalf)]

    def _senders(self) -> list[SendingHalf]:
        return [h for h in self.core._channels.halves.values() if isinstance(h, SendingHalf)]

    def poll(self) -> list[Action]:
        """Return the actions, and check that none follows an end."""
        actions = self.core.poll_actions()
        for action in actions:
            assert not self._closed, f"{action} after the close"
            if isinstance(action, CloseConnection):
                self._closed = True
            elif isinstance(action, WriteStream):
                assert action.stream not in self._finished, "a write after the end"
                self._opened.add(action.stream)
                if action.fin:
                    self._finished.add(action.stream)
            elif isinstance(action, ResetStream):
                assert action.stream in self._opened, "a reset of a stream that was never opened"
                self._finished.add(action.stream)
        return actions


def shake(direction: Direction, random: Random, *, loss: float) -> None:
    """Deliver some of the actions in flight; different streams may be reordered."""
    direction.collect()
    lanes: dict[int, list[Action]] = {}
    for at, action in enumerate(direction.flying):
        lane = action.stream if isinstance(action, WriteStream | ResetStream) else -1 - at
        lanes.setdefault(lane, []).append(action)
    kept: list[Action] = []
    moving: list[list[Action]] = []
    for actions in lanes.values():
        if isinstance(actions[-1], ResetStream) and random.random() < 0.5:
            del actions[:-1]
        if isinstance(actions[0], SendDatagram) and random.random() < loss:
            continue
        if random.random() < 0.5:
            moving.append(actions)
        else:
            kept += actions
    random.shuffle(moving)
    direction.flying = [action for actions in moving for action in actions]
    direction.held = lambda action: False
    direction.deliver()
    direction.flying = kept + direction.flying


NARROW = Limits(
    channel_window=1_000,
    connection_window=2_500,
    channel_reserve=300,
    reserve_window=1_000,
    max_message=30_000,
    max_channels=8,
    max_attachments=2,
    max_headers=100,
)
"""The limits that both sides state; they accept more."""

CRAMPED = Config(
    limits=NARROW,
    max_datagram=100,
    max_early_bytes=50_000,
    max_streams=200,
    max_ranges=20,
    max_remembered=4,
    max_forgets=20,
    max_unpacked=3,
    ack_every=4,
)
"""Limits that a run can reach."""

FAIR = Config(limits=NARROW, max_datagram=100, max_unpacked=3, ack_every=4)
"""Limits that an honest peer reaches only through the stated ones."""
