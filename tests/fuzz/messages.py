"""A program read from bytes that drives two ScalableIPC endpoints, their network and a forger.

The first byte holds settings; operations follow, each an opcode byte and its operands. The network
delays, loses and duplicates PDUs as the program says. As long as nothing was
forged, no message is taken twice, success means that the message was taken, and a message that
failed as not exposed was not taken. Always: no exception, one result per send, and
nothing is held at the end.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from random import Random

from aqueduct.errors import LocalProtocolError, RemoteProtocolError, WouldBlock
from aqueduct.ipc.core.events import Arrived, Withdrawn
from aqueduct.ipc.core.exchange import Exchange
from aqueduct.ipc.core.outgoing import OutgoingTransfer
from aqueduct.ipc.core.pdu import Code, Data, DataAck, Header, HeaderAck, decode
from aqueduct.ipc.core.settings import IpcSettings
from tests.fuzz.program import MAX_OPERATIONS, Tape

ROOMY = IpcSettings(max_pdu=512)
TIGHT = replace(
    ROOMY,
    max_message=65_536,
    max_received=65_536,
    max_receives=3,
    max_processed=4,
    max_sends=4,
    max_remotes=1,
    window=1,
)
REPORTS_SENT = 1
LIMITS_ARE_TIGHT = 2

MOMENT = 0.05
SIZES = (0, 1, 469, 470, 471, 940, 941, 2000, 65_536, 65_537)
CONTENTS = bytes(each % 251 for each in range(SIZES[-1]))
"""The start of messages, which reveals a misplaced piece."""
NUMBERS = (0, 1, 2, 3, 470, 65_536, 65_537, 2**31 - 1)


class Op(IntEnum):
    """The opcodes; the low six bits of a byte select one modulo their number."""

    DELIVER_ALL = 0
    DELIVER = 1
    LOSE = 2
    REPEAT = 3
    WAIT = 4
    STAND_STILL = 5
    SEND = 6
    TAKE = 7
    REFUSE = 8
    CANCEL = 9
    CHANGE_OWNER = 10
    TROUBLE = 11
    REPORT_SENT = 12
    RESTART = 13
    RESIZE = 14
    CLOSE = 15
    FORGE_HEADER = 16
    FORGE_DATA = 17
    FORGE_HEADER_ACK = 18
    FORGE_DATA_ACK = 19
    FORGE_BYTES = 20


class Side:
    """An endpoint, its PDUs in flight, and the messages of its application."""

    def __init__(self, index: int, config: IpcSettings, settings: int) -> None:
        self.index = index
        self.config = config
        self.reports_sent = bool(settings & REPORTS_SENT)
        self.lives = 0
        self.network: list[bytes] = []
        self.inbox: list[bytes] = []
        self.sendings: list[OutgoingTransfer] = []
        self.sent: list[bytes] = []
        self.closed = False
        self.begin(1.0)

    def begin(self, now: float) -> None:
        self.lives += 1
        randomness = Random(2 * self.lives + self.index)
        self.exchange = Exchange(self.config, randomness, now, reports_sent=self.reports_sent)
        self.closed = False
        self.inbox.clear()
        self.sendings.clear()


class World:
    """Both sides, the time, and the state of the checks."""

    def __init__(self, settings: int) -> None:
        config = TIGHT if settings & LIMITS_ARE_TIGHT else ROOMY
        self.sides = [Side(index, config, settings) for index in (0, 1)]
        self.now = 1.0
        self.honest = True
        self.took: Counter[bytes] = Counter()
        self.outcomes: dict[bytes, int] = {}
        self.names: dict[bytes, bytes] = {}
        """The ids that applications know, by the ids in PDUs."""
        self.orphans: set[bytes] = set()
        """Messages whose sender restarted, so that no result is reported."""

    def gather(self) -> None:
        """Poll both sides, and check the invariants."""
        for side in self.sides:
            for transmit in side.exchange.poll_transmits():
                side.network.append(transmit.head + transmit.data)
                if transmit.transfer is not None:
                    side.sendings.append(transmit.transfer)
                    self.names[transmit.transfer.wire_id] = transmit.transfer.message_id
            for event in side.exchange.poll_events():
                if isinstance(event, Arrived):
                    side.inbox.append(event.message_id)
                    whole = event.payload == CONTENTS[: len(event.payload)]
                    assert whole or not self.honest, "pieces are misplaced"
                    continue
                if isinstance(event, Withdrawn):
                    continue  # released when the program takes or refuses it
                assert event.message_id not in self.outcomes, "a send ended twice"
                self.outcomes[event.message_id] = event.code
                taken = self.took[event.message_id]
                if self.honest and event.code == Code.SUCCESS:
                    assert taken == 1, "succeeded, and not taken"
                if self.honest and event.code != Code.SUCCESS and not event.exposed:
                    assert not taken, "not exposed, and taken"
            held = side.exchange.leftovers()
            limits = side.config
            begun = held.get("incoming", 0) + held.get("withdrawn", 0)
            assert begun <= limits.max_receives
            assert 0 <= held.get("bytes received", 0) <= limits.max_received
            assert side.exchange.processed <= limits.max_processed + limits.max_receives
            del side.network[:-1000]

    def deliver(self, sender: Side, index: int) -> None:
        if sender.network:
            pdu = sender.network.pop(index % len(sender.network))
            self.hear(self.sides[1 - sender.index], pdu)

    def hear(self, side: Side, pdu: bytes) -> None:
        side.exchange.handle_pdu(pdu, 1 - side.index, self.now)

    def take(self, side: Side, index: int) -> None:
        if side.inbox:
            message_id = side.inbox.pop(index % len(side.inbox))
            if side.exchange.take(message_id):
                name = self.names.get(message_id, message_id)
                self.took[name] += 1
                assert not self.honest or self.took[name] == 1, "taken twice"

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for side in self.sides:
            side.exchange.handle_timer(self.now)

    def finish(self) -> None:
        """Deliver all PDUs, take all messages, and let all timers run."""
        for _ in range(40):
            for side in self.sides:
                while side.network:
                    self.deliver(side, 0)
                self.gather()
                while side.inbox:
                    self.take(side, 0)
            self.wait(2.0)
            self.gather()
        for side in self.sides:
            side.network.clear()
        self.wait(20.0)
        self.wait(20.0)
        self.gather()
        for side in self.sides:
            while side.inbox:
                self.take(side, 0)
        self.wait(20.0)
        self.wait(20.0)
        for side in self.sides:
            assert side.exchange.leftovers() == {}, side.exchange.leftovers()
            assert side.exchange.processed == 0
            assert set(side.sent) - self.orphans <= set(self.outcomes), "a send never ended"


def forged_id(world: World, side: Side, byte: int) -> bytes:
    """Return an id that a side knows, an unknown one, or zeros."""
    other = world.sides[1 - side.index]
    known = [side.exchange.owner, other.exchange.owner, *side.sent[-3:], *other.sent[-3:]]
    return known[byte % len(known)] if byte < 0xE0 else bytes((byte - 0xE0,)) * 16


def number(tape: Tape) -> int:
    return NUMBERS[tape.byte() % len(NUMBERS)]


def forged(world: World, side: Side, operation: Op, tape: Tape) -> bytes:
    if operation is Op.FORGE_BYTES:
        return tape.bytes(tape.byte() % 64)
    message_id = forged_id(world, side, tape.byte())
    if operation is Op.FORGE_HEADER:
        destination, length = forged_id(world, side, tape.byte()), number(tape)
        return Header(message_id, destination, length, bytes(tape.byte() * 4)).encode()
    if operation is Op.FORGE_DATA:
        destination, sequence = forged_id(world, side, tape.byte()), number(tape)
        return Data(message_id, destination, sequence, bytes(tape.byte() * 4)).encode()
    sequence = number(tape) if operation is Op.FORGE_DATA_ACK else 0
    code = tape.byte() % 7
    payload = forged_id(world, side, tape.byte()) if code == 2 else number(tape).to_bytes(4)
    if operation is Op.FORGE_HEADER_ACK:
        return HeaderAck(message_id, code, payload).encode()
    return DataAck(message_id, sequence, code, payload).encode()


def step(world: World, side: Side, operation: Op, tape: Tape) -> None:
    exchange = side.exchange
    if operation is Op.DELIVER_ALL:
        for each in world.sides:
            for _ in range(len(each.network)):
                world.deliver(each, 0)
    elif operation is Op.WAIT:
        world.wait(tape.byte() * MOMENT)
    elif operation is Op.STAND_STILL:
        world.now += tape.byte() * MOMENT
    elif operation is Op.SEND:
        size = SIZES[tape.byte() % len(SIZES)]
        refusal = LocalProtocolError if side.closed else WouldBlock
        with suppress(refusal):
            side.sent.append(exchange.send(1 - side.index, CONTENTS[:size], world.now))
    elif operation is Op.RESTART:
        world.gather()
        side.begin(world.now)
        world.orphans |= set(side.sent) - set(world.outcomes)
    elif operation is Op.CLOSE:
        exchange.close(world.now)
        side.closed = True
    elif operation >= Op.FORGE_HEADER:
        world.honest = False
        world.hear(side, forged(world, side, operation, tape))
    else:
        SIMPLE[operation](world, side, tape.byte())


def lose(_: World, side: Side, index: int) -> None:
    if side.network:
        side.network.pop(index % len(side.network))


def repeat(_: World, side: Side, index: int) -> None:
    if side.network:
        side.network.append(side.network[index % len(side.network)])


def refuse(_: World, side: Side, index: int) -> None:
    if side.inbox:
        side.exchange.refuse(side.inbox.pop(index % len(side.inbox)))


def cancel(world: World, side: Side, index: int) -> None:
    if side.sent:
        side.exchange.cancel(side.sent[index % len(side.sent)], world.now)


def report_sent(world: World, side: Side, index: int) -> None:
    if side.sendings:
        side.exchange.handle_sent(side.sendings.pop(index % len(side.sendings)), world.now)


SIMPLE: dict[Op, Callable[[World, Side, int], None]] = {
    Op.DELIVER: World.deliver,
    Op.LOSE: lose,
    Op.REPEAT: repeat,
    Op.TAKE: World.take,
    Op.REFUSE: refuse,
    Op.CANCEL: cancel,
    Op.CHANGE_OWNER: lambda world, side, _: side.exchange.change_owner(world.now),
    Op.TROUBLE: lambda _, side, __: side.exchange.handle_transient_error(1 - side.index, "trouble"),
    Op.REPORT_SENT: report_sent,
    Op.RESIZE: lambda _, side, byte: side.exchange.resize(512 + 4 * byte),
}


def check_decode(data: bytes) -> None:
    """Check that bytes break a rule, or decode to a PDU that encodes to them."""
    try:
        pdu = decode(data)
    except RemoteProtocolError:
        return
    assert pdu.encode()[6:] == data[6:]


def run(data: bytes) -> World:
    """Run a program to its end, and return the result."""
    check_decode(data)
    tape = Tape(data)
    world = World(tape.byte())
    operations = 0
    while not tape.over and operations < MAX_OPERATIONS:
        operations += 1
        byte = tape.byte()
        step(world, world.sides[byte >> 7], Op((byte & 0x3F) % len(Op)), tape)
        world.gather()
    world.finish()
    return world
