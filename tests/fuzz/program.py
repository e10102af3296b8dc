"""A program read from bytes that drives a client, a server, their network and a forger.

Each byte string is a program: a byte of settings, then operations, each an opcode byte and its
operands. Missing bytes at the end read as 0. As long as no operation forges anything, the
two sides are honest, must never report a violation, and must end with empty tables. Once
something was forged, only this holds: only documented errors are raised, what a side holds
is bounded, and events are consistent.
"""

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from itertools import count

from aqueduct.errors import AqueductError, CloseCode
from aqueduct.protocol.actions import CloseConnection, ResetStream, SendDatagram, WriteStream
from aqueduct.protocol.config import INITIAL_LIMITS, Config, Limits
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    Event,
    PeerHeaders,
    Readable,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
    Writable,
)
from aqueduct.wire.chanid import ENTRYPOINT, Side, is_oneshot, sender_of
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
    MessageRun,
    RouteTo,
    SentUnreliable,
    Version,
)
from tests.protocol.wires import credit

MAX_OPERATIONS = 400
"""Maximum operations; more would only slow each run down."""

MODES = (Mode.ORDERED, Mode.UNORDERED, Mode.UNRELIABLE)

LARGE_NUMBERS = (127, 128, 300, 2**14, 2**21, 2**32, 2**61 - 1, 2**62, 2**63, 2**64 - 2, 2**64 - 1)
"""The values of operand bytes from 0xE0 on."""

STRANGE_CHANNELS = tuple(2**61 - 8 + space for space in range(8))
"""Channels that no application has, one in each space."""

ACCUSATIONS = (
    CloseCode.INTERNAL,
    CloseCode.PROTOCOL_VIOLATION,
    CloseCode.VERSION_MISMATCH,
    CloseCode.FLOW_CONTROL,
    CloseCode.LIMIT_EXCEEDED,
)

SMALL = Limits(
    channel_window=512,
    connection_window=2048,
    max_message=1024,
    max_channels=6,
    max_attachments=2,
    max_headers=64,
)

THRIFTY = Config(limits=SMALL, max_unpacked=3)
"""Settings whose queues keep most messages packed."""

FRAGILE = Config(
    limits=SMALL,
    max_unpacked=3,
    max_early_bytes=4096,
    max_streams=12,
    max_ranges=3,
    max_remembered=3,
    max_forgets=3,
)
"""Bounds so low that an honest peer may exceed them: for forgers only."""


SAME_TURN = 0x40
"""The bit of an opcode that suppresses the poll before the next operation."""


class Op(IntEnum):
    """The opcodes; the low six bits of a byte select one modulo their number."""

    DELIVER_ALL = 0
    DELIVER = 1
    DROP_DATAGRAM = 2
    WAIT = 3
    WAIT_LATE = 4
    SEND = 5
    SEND_MANY = 6
    SEND_MESSAGE = 7
    TAKE = 8
    FINISH = 9
    CANCEL = 10
    CLOSE = 11
    SET_MODE = 12
    ACCEPT = 13
    REFUSE = 14
    CLOSE_CONNECTION = 15
    LOSE_CONNECTION = 16
    ROUND_TRIP_TIME = 17
    FORGE_FRAME = 18
    FORGE_BYTES = 19
    FORGE_DATAGRAM = 20
    FORGE_RESET = 21
    FORGE_BIDIRECTIONAL = 22


class Forgery(IntEnum):
    """The data that a forger writes to a stream; the first thirteen are frames."""

    VERSION = 0
    ACK_VERSION = 1
    CONNECTION_HEADERS = 2
    ROUTE_TO = 3
    MESSAGE = 4
    SENT_UNRELIABLE = 5
    FINISH_SENDER = 6
    CANCEL_SENDER = 7
    ACK_RELIABLE = 8
    ACK_NACK_UNRELIABLE = 9
    CLOSE_RECEIVER = 10
    FORGET_CHANNEL = 11
    DEQUEUED = 12
    PRELUDE = 13
    RUN = 14
    LARGE_MESSAGE = 15
    PARTIAL_MESSAGE = 16
    MANY_CHANNELS = 17


class Tape:
    """Reads the bytes of a program; after their end, zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def over(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        byte = self.byte()
        return byte if byte < 0xE0 else LARGE_NUMBERS[(byte - 0xE0) % len(LARGE_NUMBERS)]

    def size(self) -> int:
        """Return a size: mostly small, sometimes hundreds of bytes, rarely above the limit."""
        byte = self.byte()
        if byte < 0x80:
            return byte
        if byte < 0xF0:
            return (byte - 0x7F) * 64
        return (byte - 0xEF) * 8192


class Flow:
    """One stream: the bytes that were written and have not arrived."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.fin = False
        self.reset: int | None = None


class Party:
    """A core, the state of its application, and its data in flight."""

    def __init__(self, side: Side, config: Config) -> None:
        self.side = side
        self.core = ConnectionCore(side, config)
        self.known: dict[int, None] = {ENTRYPOINT: None}
        self.asked = False
        self.accepted = False
        self.over = False
        self.reason = ""
        self.ended: set[tuple[int, bool]] = set()
        self.closed: set[int] = set()
        """Receivers that the application closed itself, whose end need not be reported."""
        self.fates: dict[tuple[int, bool, int], bool] = {}
        self.sent: dict[int, deque[bytes]] = {}
        self.flows: dict[int, Flow] = {}
        self.done: set[int] = set()
        self.datagrams: deque[bytes] = deque()
        limits = config.limits
        window = max(limits.connection_window, INITIAL_LIMITS.connection_window)
        message = max(limits.max_message, INITIAL_LIMITS.max_message)
        headers = max(limits.max_headers, INITIAL_LIMITS.max_headers)
        # Twice the window in queues, once in finished ones, and the larger of twice the window
        # and one message in half-read frames, besides what came before the handshake.
        self.max_held = 5 * window + 3 * message + headers + config.max_early_bytes
        self.max_held += 64 * config.max_streams
        self.max_channels = 1 + 2 * max(limits.max_channels, INITIAL_LIMITS.max_channels)

    def close(self, channel: int, now: float) -> None:
        self.core.close(channel, now)
        self.closed.add(channel)

    def channel(self, byte: int) -> int:
        if byte >= 0xF8:
            return STRANGE_CHANNELS[byte - 0xF8]
        return list(self.known)[byte % len(self.known)]

    def write_off(self, stream: int) -> None:
        self.flows.pop(stream, None)
        self.done.add(stream)


class World:
    """Both parties, the time, and the state of the checks."""

    def __init__(self, settings: int) -> None:
        self.now = 1.0
        self.honest = True
        configs = (
            (Config(), Config()),
            (THRIFTY, THRIFTY),
            (Config(), THRIFTY),
            (FRAGILE, FRAGILE),
        )[settings & 3]
        if settings & 3 == 3:
            self.honest = False
        self.accepts_by_itself = settings & 4 == 0
        self.client = Party(Side.CLIENT, configs[0])
        self.server = Party(Side.SERVER, configs[1])
        self.parties = (self.client, self.server)
        self.forged_streams = [0] * 8
        self.tag = count(1)
        self.gather()

    def other(self, party: Party) -> Party:
        return self.server if party is self.client else self.client

    # Output

    def gather(self) -> None:
        """Poll both sides and check the invariants."""
        for party in self.parties:
            self.note_events(party)
            for action in party.core.poll_actions():
                if isinstance(action, WriteStream):
                    self.write(party, action)
                elif isinstance(action, ResetStream):
                    if action.stream not in party.done:
                        party.flows.setdefault(action.stream, Flow()).reset = action.code
                elif isinstance(action, SendDatagram):
                    assert len(action.data) <= party.core.config.max_datagram
                    party.datagrams.append(action.data)
                else:
                    self.closed(party, action)
            held = party.core.held_bytes
            assert 0 <= held <= party.max_held, f"{held} bytes are held"
            limit = party.max_channels + self.other(party).max_channels
            assert party.core.channel_count <= limit

    def write(self, party: Party, action: WriteStream) -> None:
        flow = party.flows.setdefault(action.stream, Flow())
        assert not flow.fin or not action.data, "written after the end of a stream"
        flow.data += action.data
        flow.fin = flow.fin or action.fin

    def closed(self, party: Party, action: CloseConnection) -> None:
        other = self.other(party)
        assert party.over, "closed without ConnectionEnded"
        if self.honest:
            accused = (
                f"the {party.side.name} reports a violation of an honest peer: {action.reason}"
            )
            assert action.code not in ACCUSATIONS, accused
        other.core.handle_connection_lost(action.code, action.reason, True, self.now)
        self.note_events(other)

    def note_events(self, party: Party) -> None:
        # The reaction of the application to an event may cause further events.
        while events := party.core.poll_events():
            for event in events:
                self.note(party, event)

    def note(self, party: Party, event: Event) -> None:
        assert not party.over, f"{event} after the end"
        if isinstance(event, ConnectionEnded):
            party.over = True
            party.reason = event.reason
            assert party.core.leftovers() == []
            assert party.core.next_timer() is None
            return
        if isinstance(event, PeerHeaders):
            assert not party.asked, "headers arrived twice"
            party.asked = True
            if party.side is Side.SERVER and self.accepts_by_itself:
                self.accept()
            return
        channel = event.channel
        assert channel in party.known, f"{event}: the application has no such channel"
        is_sender = not isinstance(event, Readable | ReceiverEnded)
        assert is_sender == (sender_of(channel) == party.side), event
        assert (channel, is_sender) not in party.ended, f"{event} after the end of its half"
        if isinstance(event, Delivered | Undelivered):
            for start, stop in event.ranges:
                assert start < stop
                for number in range(start, stop):
                    key = (channel, event.reliable, number)
                    assert key not in party.fates, f"{event}: {number} was already reported"
                    party.fates[key] = isinstance(event, Delivered)
        elif isinstance(event, ReceiverEnded | SenderEnded):
            party.ended.add((channel, is_sender))
        else:
            assert isinstance(event, Readable | Writable)

    # Commands

    def command(self, call: Callable[[], object]) -> bool:
        """Run a command; return False if it raised a documented error."""
        try:
            call()
        except AqueductError:
            return False
        return True

    def accept(self) -> None:
        if self.command(lambda: self.server.core.accept(((b"name", b"fuzz"),), self.now)):
            self.server.accepted = True

    def payload(self, size: int) -> bytes:
        """Return a payload that is unique if it is long enough."""
        return next(self.tag).to_bytes(4, "big")[:size] + bytes(max(size - 4, 0))

    def send(self, party: Party, channel: int, size: int) -> bool:
        payload = self.payload(size)
        if not self.command(lambda: party.core.send(channel, payload, self.now)):
            self.command(lambda: self.check_credit(party, channel))
            return False
        party.sent.setdefault(channel, deque()).append(payload)
        return True

    def check_credit(self, party: Party, channel: int) -> None:
        assert credit(party.core, channel) >= 0

    def send_message(self, party: Party, tape: Tape) -> None:
        channel = party.channel(tape.byte())
        payload = self.payload(tape.size())
        shape = tape.byte()
        headers = tuple((bytes(tape.byte() & 31), b"value") for _ in range(shape & 3))
        attach = tuple(self.attachment(tape.byte()) for _ in range(shape >> 2 & 3))

        def call() -> None:
            sent = party.core.send_message(
                channel, payload, self.now, headers=headers, attach=attach
            )
            assert len(sent.channels) == len(attach)
            for made, one in zip(sent.channels, attach, strict=True):
                assert made not in party.known
                assert is_oneshot(made) == one.oneshot
                party.known[made] = None
            party.sent.setdefault(channel, deque()).append(payload)

        self.command(call)

    def attachment(self, byte: int) -> Attach:
        return Attach(
            Give.SENDER if byte & 1 else Give.RECEIVER,
            oneshot=byte & 2 != 0,
            headers=((b"attached", bytes(byte >> 5)),) if byte & 4 else (),
            mode=MODES[(byte >> 3) % 3],
        )

    def take(self, party: Party, channel: int, limit: int) -> int:
        batch = party.core.take(channel, limit, self.now)
        taken = 0
        for entry in batch:
            if isinstance(entry, MessageRun):
                assert entry.payloads
                assert entry.size == sum(map(len, entry.payloads))
                payloads = entry.payloads
            else:
                payloads = [entry.payload]
                for attachment in entry.attachments:
                    assert attachment.channel not in party.known
                    party.known[attachment.channel] = None
            taken += len(payloads)
            for payload in payloads:
                self.check_taken(party, channel, payload)
        assert taken <= limit
        return taken

    def check_taken(self, party: Party, channel: int, payload: bytes) -> None:
        """Check that each message of an honest peer is taken at most once, and no other."""
        if self.honest:
            sent = self.other(party).sent.get(channel)
            assert sent is not None, "a message on an unknown channel"
            assert payload in sent, "a message that was not sent, or taken twice"
            sent.remove(payload)

    # The network

    def deliver_all(self) -> None:
        for _ in range(1000):
            self.gather()
            if not any(party.flows or party.datagrams for party in self.parties):
                return
            for party in self.parties:
                for stream in list(party.flows):
                    self.deliver_stream(party, stream, 0)
                while party.datagrams:
                    self.other(party).core.handle_datagram(party.datagrams.popleft(), self.now)
        raise AssertionError("the two sides exchange data forever without time passing")

    def deliver_stream(self, party: Party, stream: int, portion: int) -> None:
        """Deliver some bytes of a stream, or its reset, which may overtake them."""
        flow = party.flows[stream]
        core = self.other(party).core
        if flow.reset is not None and portion % 2 == 0:
            party.write_off(stream)
            core.handle_stream_reset(stream, flow.reset, self.now)
            return
        size = portion or len(flow.data)
        data = bytes(flow.data[:size])
        del flow.data[:size]
        fin = flow.fin and not flow.data and flow.reset is None
        core.handle_stream_data(stream, data, fin, self.now)
        if fin:
            party.write_off(stream)
        elif not flow.data and flow.reset is None:
            # The stream continues when there is more to write.
            del party.flows[stream]

    def deliver_one(self, party: Party, which: int, portion: int) -> None:
        streams = list(party.flows)
        waiting = len(streams) + len(party.datagrams)
        if not waiting:
            return
        which %= waiting
        if which < len(streams):
            self.deliver_stream(party, streams[which], portion)
            return
        datagram = party.datagrams[which - len(streams)]
        party.datagrams.remove(datagram)
        self.other(party).core.handle_datagram(datagram, self.now)

    def wait(self, seconds: float) -> None:
        """Advance the time and run each timer when it is due."""
        until = self.now + seconds
        for _ in range(1000):
            timers = [party.core.next_timer() for party in self.parties]
            due = min((timer for timer in timers if timer is not None), default=until)
            if due >= until:
                break
            self.now = max(self.now, due)
            self.call_timers()
        self.now = until
        self.call_timers()

    def call_timers(self) -> None:
        for party in self.parties:
            timer = party.core.next_timer()
            if timer is not None and timer <= self.now:
                party.core.handle_timer(self.now)
                after = party.core.next_timer()
                assert after is None or after > self.now, "a timer that is always due"
        self.gather()

    # The forger

    def forged_stream(self, byte: int) -> int:
        slot = byte & 7
        # With bit 3 the forger continues a stream of the honest peer.
        return slot if byte & 8 else 1000 + slot + 8 * self.forged_streams[slot]

    def forge(self, victim: Party, where: int, data: bytes, fin: bool) -> None:
        self.honest = False
        stream = self.forged_stream(where)
        victim.core.handle_stream_data(stream, data, fin, self.now)
        if fin:
            self.other(victim).write_off(stream)
        if fin or where & 32:
            # The next forgery goes to another stream, and this one may stay open forever.
            self.forged_streams[where & 7] += 1


def forged_channel(victim: Party, byte: int) -> int:
    """Return a channel that the victim's application has, or the one with this number."""
    return victim.channel(byte & 0x7F) if byte < 0x80 else byte - 0x80


def forged_frame(victim: Party, tape: Tape) -> bytes:
    """Return the bytes of one or more frames, from the operands that follow."""
    kind = Forgery(tape.byte() % len(Forgery))
    if kind is Forgery.VERSION:
        return (Version() if tape.byte() < 0xF0 else Version(b"1")).encode()
    if kind is Forgery.CONNECTION_HEADERS:
        return ConnectionHeaders(forged_headers(tape)).encode()
    if kind is Forgery.ROUTE_TO:
        return RouteTo(forged_channel(victim, tape.byte())).encode()
    if kind is Forgery.PRELUDE:
        return Version().encode() + RouteTo(forged_channel(victim, tape.byte())).encode()
    if kind in (Forgery.MESSAGE, Forgery.LARGE_MESSAGE, Forgery.PARTIAL_MESSAGE):
        return forged_message(kind, tape)
    if kind is Forgery.MANY_CHANNELS:
        number, space, first = tape.number(), tape.byte() & 7, tape.byte() * 16
        indexes = range(first, first + tape.byte() % 32)
        attached = tuple(Attachment(index << 3 | space, ()) for index in indexes)
        return MessageFrame(number, (), attached, b"").encode()
    if kind is Forgery.RUN:
        first, length, size = tape.number(), tape.byte() % 100, tape.size() % 600
        numbers = range(first, min(first + length, 2**64))
        return b"".join([MessageFrame(number, (), (), bytes(size)).encode() for number in numbers])
    if kind is Forgery.ACK_RELIABLE:
        return forged_acks(tape)
    if kind is Forgery.ACK_NACK_UNRELIABLE:
        lengths = [tape.number(), *(tape.number() or 1 for _ in range(tape.byte() & 3))]
        if sum(lengths) in range(1, 2**64):
            return AckNackUnreliable(tuple(lengths)).encode()
        return b"\x09\x01\x00"
    if kind is Forgery.SENT_UNRELIABLE:
        return SentUnreliable(tape.number()).encode()
    if kind is Forgery.FINISH_SENDER:
        return FinishSender(tape.number()).encode()
    if kind is Forgery.DEQUEUED:
        return Dequeued(tape.number()).encode()
    bare: dict[Forgery, Frame] = {
        Forgery.ACK_VERSION: AckVersion(),
        Forgery.CANCEL_SENDER: CancelSender(),
        Forgery.CLOSE_RECEIVER: CloseReceiver(),
        Forgery.FORGET_CHANNEL: ForgetChannel(),
    }
    return bare[kind].encode()


def forged_headers(tape: Tape) -> tuple[tuple[bytes, bytes], ...]:
    """Return no headers, some, or invalid limits."""
    shape = tape.byte()
    headers = tuple((tape.bytes(tape.byte() & 15), b"") for _ in range(shape & 3))
    if shape & 4:
        headers += ((b"aqueduct-limits", tape.bytes(tape.byte() & 63)),)
    return headers


def forged_message(kind: Forgery, tape: Tape) -> bytes:
    number, shape, size = tape.number(), tape.byte(), tape.size()
    if kind is Forgery.LARGE_MESSAGE:
        size *= 16
    headers = ((b"forged", tape.bytes(shape >> 4)),) if shape & 1 else ()
    channels = dict.fromkeys(tape.number() for _ in range(shape >> 1 & 3))
    attachments = tuple(Attachment(channel, ()) for channel in channels)
    encoded = MessageFrame(number, headers, attachments, bytes(size)).encode()
    return encoded[:-1] if kind is Forgery.PARTIAL_MESSAGE else encoded


def forged_acks(tape: Tape) -> bytes:
    ranges: list[tuple[int, int]] = []
    reached = 0
    for _ in range(1 + (tape.byte() & 3)):
        start = reached + tape.number() + (1 if ranges else 0)
        reached = start + (tape.number() or 1)
        ranges.append((start, reached))
    if reached > 2**64:
        return b"\x08\x02\x00\x00"
    return AckReliable(tuple(ranges)).encode()


def run(data: bytes) -> World:
    """Run a program, and let an honest pair finish."""
    tape = Tape(data)
    world = World(tape.byte())
    for _ in range(MAX_OPERATIONS):
        if tape.over:
            break
        code = tape.byte()
        step(world, code, tape)
        if not code & SAME_TURN:
            world.gather()
    world.gather()
    if world.honest and not any(party.over for party in world.parties):
        settle(world)
    else:
        world.wait(2.0)
        world.deliver_all()
        for party in world.parties:
            negative = [line for line in party.core.leftovers() if line.startswith("-")]
            assert not negative, f"{negative}: more was released than was charged"
    return world


def step(world: World, code: int, tape: Tape) -> None:
    """Run one operation; the highest bit selects the server."""
    op = Op((code & 0x3F) % len(Op))
    party = world.parties[code >> 7]
    if op >= Op.FORGE_FRAME:
        forge(world, op, party, tape)
    elif op >= Op.SEND:
        command(world, op, party, tape)
    elif op is Op.DELIVER_ALL:
        world.deliver_all()
    elif op is Op.DELIVER:
        world.deliver_one(party, tape.byte(), tape.byte())
    elif op is Op.DROP_DATAGRAM:
        if party.datagrams:
            del party.datagrams[tape.byte() % len(party.datagrams)]
    elif op is Op.WAIT:
        world.wait(tape.byte() / 1000)
    else:
        world.now += tape.byte() / 100
        world.call_timers()


def command(world: World, op: Op, party: Party, tape: Tape) -> None:
    core, now = party.core, world.now
    if op is Op.SEND:
        world.send(party, party.channel(tape.byte()), tape.size())
    elif op is Op.SEND_MANY:
        channel, size = party.channel(tape.byte()), tape.size()
        for _ in range(tape.byte()):
            if not world.send(party, channel, size):
                break
    elif op is Op.SEND_MESSAGE:
        world.send_message(party, tape)
    elif op is Op.TAKE:
        world.take(party, party.channel(tape.byte()), tape.byte() or 1000)
    elif op is Op.FINISH:
        core.finish(party.channel(tape.byte()), now)
    elif op is Op.CANCEL:
        core.cancel(party.channel(tape.byte()), now)
    elif op is Op.CLOSE:
        party.close(party.channel(tape.byte()), now)
    elif op is Op.SET_MODE:
        channel, mode = party.channel(tape.byte()), MODES[tape.byte() % 3]
        world.command(lambda: core.set_mode(channel, mode))
    elif op is Op.ACCEPT:
        world.accept()
    elif op is Op.REFUSE:
        world.command(lambda: world.server.core.refuse(CloseCode.REFUSED, "no", now))
    elif op is Op.CLOSE_CONNECTION:
        core.close_connection(CloseCode.GOING_AWAY, "bye", now)
    elif op is Op.LOSE_CONNECTION:
        core.handle_connection_lost(CloseCode.IDLE, "idle", False, now)
    else:
        core.handle_rtt(tape.byte() / 100)


def forge(world: World, op: Op, victim: Party, tape: Tape) -> None:
    if op is Op.FORGE_BIDIRECTIONAL:
        world.honest = False
        victim.core.handle_bidirectional_stream(world.now)
        return
    where = tape.byte()
    if op is Op.FORGE_FRAME:
        # Bit 4 ends the stream, the two highest bits are the number of frames.
        data = b"".join([forged_frame(victim, tape) for _ in range(1 + (where >> 6))])
        world.forge(victim, where, data, where & 16 != 0)
    elif op is Op.FORGE_BYTES:
        world.forge(victim, where, tape.bytes(tape.byte()), where & 16 != 0)
    elif op is Op.FORGE_DATAGRAM:
        world.honest = False
        if where & 1:
            data = tape.bytes(tape.byte())
        else:
            data = b"".join([forged_frame(victim, tape) for _ in range(1 + (where >> 6))])
        victim.core.handle_datagram(data, world.now)
    else:
        world.honest = False
        stream = world.forged_stream(where)
        victim.core.handle_stream_reset(stream, 0x10, world.now)
        world.forged_streams[where & 7] += 1
        world.other(victim).write_off(stream)


def settle(world: World) -> None:
    """Let both applications end their halves, and check that nothing is left."""
    for _ in range(200):
        world.deliver_all()
        if not world.server.accepted and world.server.asked:
            world.accept()
        for party in world.parties:
            for channel in list(party.known):
                party.core.finish(channel, world.now)
                if world.take(party, channel, 1000) == 0 and channel % 3 == 0:
                    party.close(channel, world.now)
        world.gather()
        if not any(party.core.leftovers() for party in world.parties):
            break
        world.deliver_all()
        world.wait(0.3)
    for party in world.parties:
        assert not party.core.leftovers(), f"{party.side.name} holds {party.core.leftovers()}"
        for channel in party.known:
            is_sender = sender_of(channel) == party.side
            reported = (channel, is_sender) in party.ended
            assert reported or (not is_sender and channel in party.closed), f"{channel} never ended"
