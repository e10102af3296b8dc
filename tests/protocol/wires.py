"""Fixtures for cores: a pair connected in memory, and a peer of raw frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aqueduct.errors import CloseCode
from aqueduct.protocol.actions import (
    Action,
    CloseConnection,
    ResetStream,
    SendDatagram,
    WriteStream,
)
from aqueduct.protocol.budget import AddressAccount, Budget
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import ConnectionEnded, Event
from aqueduct.wire.chanid import ENTRYPOINT, Side, channel_id
from aqueduct.wire.frames import (
    AckVersion,
    Attachment,
    ConnectionHeaders,
    Frame,
    MessageFrame,
    MessageRun,
    RouteTo,
    Version,
)
from aqueduct.wire.primitives import HeaderPairs, encode_headers, encode_varint
from aqueduct.wire.sequence import ParserLimits, SequenceParser

HUGE = 2**40
GENEROUS = ParserLimits(max_message=HUGE, max_headers=HUGE, max_attachments=HUGE)

WIDE = Limits(HUGE, HUGE, 2**30, HUGE, 2**20, 2**20)
"""Limits that no test reaches by accident."""

GIVE_RECEIVER = Attach(Give.RECEIVER)
GIVE_SENDER = Attach(Give.SENDER)


def encode(frames: Iterable[Frame]) -> bytes:
    return b"".join([frame.encode() for frame in frames])


def flatten(frames: Iterable[Frame | MessageRun]) -> list[Frame]:
    """Return the frames with runs split into messages."""
    flat: list[Frame] = []
    for frame in frames:
        if isinstance(frame, MessageRun):
            flat += frame.messages()
        else:
            flat.append(frame)
    return flat


def decode(data: bytes) -> list[Frame]:
    """Return all frames of a complete sequence."""
    parser = SequenceParser(GENEROUS)
    parser.feed(data)
    frames = flatten(iter(parser.next, None))
    parser.finish()
    return frames


def stated(limits: Limits, *, reserves: bool = False) -> HeaderPairs:
    """Return the connection header that states limits, encoded by hand."""
    pairs: tuple[tuple[bytes, int], ...] = (
        (b"channel-window", limits.channel_window),
        (b"connection-window", limits.connection_window),
        (b"max-message", limits.max_message),
        (b"max-channels", limits.max_channels),
        (b"max-attachments", limits.max_attachments),
        (b"max-headers", limits.max_headers),
    )
    if reserves:
        pairs += (
            (b"channel-reserve", limits.channel_reserve),
            (b"reserve-window", limits.reserve_window),
        )
    # Header data without its own length: the header has one.
    contents = b"".join(encode_headers(((name, encode_varint(n)),))[1:] for name, n in pairs)
    return ((b"aqueduct-limits", contents),)


def plain(number: int, payload: bytes = b"") -> MessageFrame:
    return MessageFrame(number, (), (), payload)


def carrier(number: int, *channels: int, payload: bytes = b"") -> MessageFrame:
    return MessageFrame(number, (), tuple(Attachment(channel, ()) for channel in channels), payload)


def payloads(batch: Iterable[MessageFrame | MessageRun]) -> list[bytes]:
    """Return the payloads of what `take` returned."""
    return [message.payload for message in flatten(batch) if isinstance(message, MessageFrame)]


def from_client(index: int, *, oneshot: bool = False) -> int:
    """Return a channel that the client created and sends on."""
    return channel_id(Side.CLIENT, Side.CLIENT, oneshot, index)


def to_client(index: int, *, oneshot: bool = False) -> int:
    """Return a channel that the client created and the server sends on."""
    return channel_id(Side.CLIENT, Side.SERVER, oneshot, index)


def from_server(index: int, *, oneshot: bool = False) -> int:
    """Return a channel that the server created and sends on."""
    return channel_id(Side.SERVER, Side.SERVER, oneshot, index)


def to_server(index: int, *, oneshot: bool = False) -> int:
    """Return a channel that the server created and the client sends on."""
    return channel_id(Side.SERVER, Side.CLIENT, oneshot, index)


# -- two connections -------------------------------------------------------------------------------


class Direction:
    """The actions of one side that have not reached the other."""

    def __init__(self, pair: Pair, source: ConnectionCore, target: ConnectionCore) -> None:
        self._pair = pair
        self.source = source
        self.target = target
        self.flying: list[Action] = []
        self.held: Callable[[Action], bool] = lambda action: False
        """Returns whether an action is held back."""

    def collect(self) -> None:
        """Poll the actions of the source."""
        self.flying += self.source.poll_actions()

    def hold_everything(self) -> None:
        self.held = lambda action: True

    def hold_streams(self, *streams: int) -> None:
        self.held = lambda action: getattr(action, "stream", None) in streams

    def hold_datagrams(self) -> None:
        self.held = lambda action: isinstance(action, SendDatagram)

    def release(self) -> None:
        self.held = lambda action: False

    def drop_datagrams(self) -> int:
        """Lose the datagrams in flight."""
        self.collect()
        before = len(self.flying)
        self.flying = [a for a in self.flying if not isinstance(a, SendDatagram)]
        return before - len(self.flying)

    def deliver(self) -> bool:
        """Deliver everything that is not held back, in order; return whether there was anything."""
        self.collect()
        moving = [action for action in self.flying if not self.held(action)]
        self.flying = [action for action in self.flying if self.held(action)]
        for action in moving:
            self._hand_over(action)
        return bool(moving)

    def _hand_over(self, action: Action) -> None:
        now = self._pair.now
        if isinstance(action, WriteStream):
            self.target.handle_stream_data(action.stream, action.data, action.fin, now)
        elif isinstance(action, ResetStream):
            self.target.handle_stream_reset(action.stream, action.code, now)
        elif isinstance(action, SendDatagram):
            self.target.handle_datagram(action.data, now)
        else:
            self.target.handle_connection_lost(action.code, action.reason, True, now)


class Pair:
    """A client and a server, connected directly."""

    def __init__(
        self,
        client_config: Config | None = None,
        server_config: Config | None = None,
        *,
        headers: HeaderPairs = (),
        accept: bool = True,
    ) -> None:
        self.now = 100.0
        self.client = ConnectionCore(Side.CLIENT, client_config, headers=headers)
        self.server = ConnectionCore(Side.SERVER, server_config)
        self.to_server = Direction(self, self.client, self.server)
        self.to_client = Direction(self, self.server, self.client)
        self.events: dict[Side, list[Event]] = {Side.CLIENT: [], Side.SERVER: []}
        if accept:
            self.to_server.deliver()
            self.server.accept((), self.now)
            self.run()
            self.forget_events()

    def run(self) -> None:
        """Deliver until both sides are idle; no time passes."""
        while self.to_server.deliver() | self.to_client.deliver():
            pass
        self._collect_events()

    def wait(self, seconds: float) -> None:
        """Advance the time, and run all timers that are due."""
        self.run()
        end = self.now + seconds
        while True:
            timers = [t for t in (self.client.next_timer(), self.server.next_timer()) if t]
            self.now = min([end, *(max(t, self.now) for t in timers)])
            self.client.handle_timer(self.now)
            self.server.handle_timer(self.now)
            self.run()
            if self.now >= end:
                return

    def _collect_events(self) -> None:
        self.events[Side.CLIENT] += self.client.poll_events()
        self.events[Side.SERVER] += self.server.poll_events()

    def at_client(self) -> list[Event]:
        """Return the client's events since the last call."""
        self._collect_events()
        events, self.events[Side.CLIENT] = self.events[Side.CLIENT], []
        return events

    def at_server(self) -> list[Event]:
        """Return the server's events since the last call."""
        self._collect_events()
        events, self.events[Side.SERVER] = self.events[Side.SERVER], []
        return events

    def forget_events(self) -> None:
        self.at_client()
        self.at_server()

    def give_receiver(self, mode: Mode = Mode.ORDERED, *, oneshot: bool = False) -> int:
        """Create a channel from client to server; both applications hold their handles."""
        attach = Attach(Give.RECEIVER, mode=mode, oneshot=oneshot)
        return self._give(attach)

    def give_sender(self, *, oneshot: bool = False) -> int:
        """Create a channel from server to client; both applications hold their handles."""
        return self._give(Attach(Give.SENDER, oneshot=oneshot))

    def _give(self, attach: Attach) -> int:
        sent = self.client.send_message(ENTRYPOINT, b"", self.now, attach=[attach])
        self.run()
        self.server.take(ENTRYPOINT, 1, self.now)
        self.wait(0.02)
        self.forget_events()
        return sent.channels[0]


# -- a connection and a raw peer -------------------------------------------------------------------


@dataclass
class Seen:
    """What the core did with one of its streams."""

    frames: list[Frame] = field(default_factory=list)
    fin: bool = False
    reset: int | None = None

    @property
    def channel(self) -> int | None:
        """The channel that the stream is routed to."""
        routes = [frame.channel for frame in self.frames if isinstance(frame, RouteTo)]
        return routes[0] if routes else None

    @property
    def about(self) -> list[Frame]:
        """The frames after ROUTE_TO."""
        routes = [at for at, frame in enumerate(self.frames) if isinstance(frame, RouteTo)]
        return self.frames[routes[0] + 1 :] if routes else []


class RawPeer:
    """A core whose peer sends the frames that the test chooses."""

    def __init__(
        self,
        side: Side,
        config: Config | None = None,
        *,
        limits: Limits | None = WIDE,
        greet: bool = True,
        early: Budget | None = None,
        account: AddressAccount | None = None,
    ) -> None:
        self.now = 100.0
        self.core = ConnectionCore(side, config, early=early, account=account)
        self.streams: dict[int, Seen] = {}
        self.datagrams: list[list[Frame]] = []
        self.closed: CloseConnection | None = None
        self.log: list[tuple[int, Frame]] = []
        """All frames that the core sent since the log was last read, with their streams."""
        self._parsers: dict[int, SequenceParser] = {}
        self._next_stream = 0
        if greet:
            self.greet(limits)

    def greet(self, limits: Limits | None = WIDE) -> None:
        """Exchange versions and headers, so that channels can be used."""
        headers = ConnectionHeaders(() if limits is None else stated(limits))
        if self.core.side == Side.CLIENT:
            self.stream(Version(), AckVersion(), headers, fin=True)
        else:
            self.stream(Version(), headers, fin=True)
            self.core.accept((), self.now)
            self.stream(AckVersion(), fin=True)
        self.poll()
        self.log.clear()
        self.core.poll_events()

    # -- from the peer to the core

    def stream(self, *frames: Frame, fin: bool = False) -> int:
        """Open a stream with these frames."""
        number = self._next_stream
        self._next_stream += 1
        self.write(number, encode(frames), fin=fin)
        return number

    def routed(self, channel: int, *frames: Frame, fin: bool = False) -> int:
        """Open a stream that is routed to a channel, with these frames."""
        return self.stream(RouteTo(channel), *frames, fin=fin)

    def raw(self, data: bytes, *, fin: bool = False) -> int:
        """Open a stream with these bytes."""
        number = self._next_stream
        self._next_stream += 1
        self.write(number, data, fin=fin)
        return number

    def more(self, stream: int, *frames: Frame, fin: bool = False) -> None:
        """Append frames to a stream."""
        self.write(stream, encode(frames), fin=fin)

    def write(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        self.core.handle_stream_data(stream, data, fin, self.now)

    def reset(self, stream: int, code: int = 0x10) -> None:
        self.core.handle_stream_reset(stream, code, self.now)

    def datagram(self, *frames: Frame) -> None:
        self.core.handle_datagram(encode(frames), self.now)

    def datagram_to(self, channel: int, *frames: Frame) -> None:
        self.datagram(RouteTo(channel), *frames)

    # -- from the core to the peer

    def poll(self) -> list[Action]:
        """Poll and decode the actions of the core."""
        actions = self.core.poll_actions()
        for action in actions:
            if isinstance(action, WriteStream):
                self._read(action)
            elif isinstance(action, ResetStream):
                self.streams.setdefault(action.stream, Seen()).reset = action.code
            elif isinstance(action, SendDatagram):
                self.datagrams.append(decode(action.data))
            else:
                assert self.closed is None
                self.closed = action
        return actions

    def _read(self, action: WriteStream) -> None:
        seen = self.streams.setdefault(action.stream, Seen())
        assert not seen.fin, "a write after the end of the stream"
        assert seen.reset is None, "a write after a reset"
        parser = self._parsers.setdefault(action.stream, SequenceParser(GENEROUS))
        parser.feed(action.data)
        fresh = flatten(iter(parser.next, None))
        seen.frames += fresh
        self.log += [(action.stream, frame) for frame in fresh]
        if action.fin:
            parser.finish()
            seen.fin = True
            del self._parsers[action.stream]

    def said(self) -> list[Frame]:
        """Return the frames that the core sent in streams since the last call."""
        self.poll()
        log, self.log = self.log, []
        return [frame for _, frame in log]

    def about(self, channel: int) -> list[Seen]:
        """Return the core's streams that are routed to a channel, oldest first."""
        self.poll()
        return [seen for seen in self.streams.values() if seen.channel == channel]

    def said_about(self, channel: int) -> list[Frame]:
        """Return all frames that the core has sent in streams on a channel."""
        return [frame for seen in self.about(channel) for frame in seen.about]

    def events(self) -> list[Event]:
        return self.core.poll_events()

    def wait(self, seconds: float) -> None:
        """Advance the time, and run all timers that are due."""
        self.poll()
        end = self.now + seconds
        while True:
            timer = self.core.next_timer()
            self.now = end if timer is None else min(end, max(timer, self.now))
            self.core.handle_timer(self.now)
            self.poll()
            if self.now >= end:
                return

    def assert_alive(self) -> None:
        self.poll()
        assert self.closed is None

    def assert_closed_for(self, code: CloseCode, rule: str) -> None:
        """Check that the core closed the connection for this reason."""
        assert self.closed is not None, f"still open; {rule} was broken"
        reason = self.closed.reason.split(":")[0]
        assert (CloseCode(self.closed.code).name, reason) == (code.name, rule), self.closed

    def assert_closed(self, code: CloseCode, rule: str) -> None:
        """Check that the core closed the connection for this reason, and holds no state."""
        actions = self.poll()
        self.assert_closed_for(code, rule)
        assert self.closed is not None
        assert actions == [self.closed], "only the close is sent"
        ended = self.events()[-1]
        assert ended == ConnectionEnded(code, self.closed.reason, False)
        assert self.core.leftovers() == []
        assert self.core.channel_count == 0
        assert self.core.next_timer() is None


def client_core(config: Config | None = None, *, limits: Limits | None = WIDE) -> RawPeer:
    """Return a client that has exchanged headers with a raw server."""
    return RawPeer(Side.CLIENT, config, limits=limits)


def server_core(config: Config | None = None, *, limits: Limits | None = WIDE) -> RawPeer:
    """Return a server that has accepted a raw client."""
    return RawPeer(Side.SERVER, config, limits=limits)


def credit(core: ConnectionCore, channel: int) -> int:
    """Return how many bytes could be sent on a channel now."""
    half = core._sender(channel)
    if not half.is_open():
        return 0
    limits = core._context.credit.peer_limits
    window = core._context.credit.send_window
    spare = min(max(window.reserve - half.outstanding, 0), max(window.pool - window.reserved, 0))
    shared = max(window.limit + spare - window.outstanding, 0)
    return min(max(limits.channel_window - half.outstanding, 0), shared)
