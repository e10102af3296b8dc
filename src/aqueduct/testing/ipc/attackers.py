"""Attackers on the network: one forges PDUs, one occupies the memory of an endpoint."""

from __future__ import annotations

from random import Random

from aqueduct.errors import RemoteProtocolError
from aqueduct.ipc.core.pdu import (
    ID_SIZE,
    MAX_ACK,
    Code,
    Data,
    DataAck,
    Header,
    HeaderAck,
    Opcode,
    decode,
    decode_owner,
)
from aqueduct.testing.clock import VirtualClock
from aqueduct.testing.ipc.network import DatagramNetwork
from aqueduct.testing.ipc.peer import Peer
from aqueduct.testing.ipc.record import IpcRecord, IpcSent

FORGER = "eve"
FIRST_PIECE = 40
EXCESS = 30

HOARDERS = tuple(f"hoarder {number}" for number in range(6))
AT_ONCE = 3
"""Maximum messages started per turn."""
MANY = 100
KEPT = 24
"""Messages that it continues at a time."""


class Forger:
    """Sees every datagram, and sends garbage and forged PDUs.

    Nothing it sends may break a promise made to others. A valid message of its own is received
    like any other, even if its PDUs hold more bytes than the message has.
    """

    def __init__(
        self,
        probability: float,
        random: Random,
        clock: VirtualClock,
        network: DatagramNetwork,
        record: IpcRecord,
    ) -> None:
        self.quiet = False
        self._probability = probability
        self._random = random
        self._clock = clock
        self._network = network
        self._record = record.entries
        self._messages: dict[bytes, bytes] = {}
        network.receivers[FORGER] = self._receive
        if probability:
            network.on_datagram = self._hear

    def _hear(self, source: str, remote: str, datagram: bytes) -> None:
        if self.quiet or FORGER in (source, remote) or self._random.random() >= self._probability:
            return
        forge = self._random.choice(
            (
                self._noise,
                self._cut,
                self._padded_ack,
                self._false_ack,
                self._false_notice,
                self._unknown,
                self._greet,
            )
        )
        forged = forge(datagram)
        if forged:
            at = self._random.choice((source, remote))
            for_source = forge in (self._false_ack, self._false_notice)
            self._network.carry(FORGER, source if for_source else at, forged)

    def _noise(self, _: bytes) -> bytes:
        return self._random.randbytes(self._random.randint(1, 80))

    def _cut(self, datagram: bytes) -> bytes:
        """Return a truncated PDU."""
        return datagram[: self._random.randint(1, 22)]

    def _padded_ack(self, datagram: bytes) -> bytes:
        """Return an ack that is valid but for its length."""
        ack = self._false_ack(datagram)
        return ack + bytes(MAX_ACK + 1 - len(ack)) if ack else b""

    def _false_ack(self, datagram: bytes) -> bytes:
        """Return the ack that the sender waits for, from the wrong source."""
        if datagram[0] == Opcode.HEADER:
            return HeaderAck(datagram[6:22]).encode()
        if datagram[0] == Opcode.DATA:
            return DataAck(datagram[6:22], int.from_bytes(datagram[38:42], "big")).encode()
        return b""

    def _false_notice(self, datagram: bytes) -> bytes:
        """Return a notice that the message is complete, from the wrong source."""
        if datagram[0] not in (Opcode.HEADER, Opcode.DATA):
            return b""
        number = int.from_bytes(datagram[38:42], "big") if datagram[0] == Opcode.DATA else 0
        return DataAck(datagram[6:22], number + 1).encode()

    def _unknown(self, _: bytes) -> bytes:
        """Return a PDU of an unknown message."""
        message = self._random.randbytes(ID_SIZE)
        other = self._random.randbytes(ID_SIZE)
        return self._random.choice(
            (
                HeaderAck(message),
                DataAck(message, 1),
                Data(message, other, 1, b"unknown"),
                Header(message, other, 7, b"unknown"),
            )
        ).encode()

    def _greet(self, _: bytes) -> bytes:
        """Return the first PDU of its own message, to learn the owner id."""
        message = self._random.randbytes(ID_SIZE)
        self._messages[message] = self._random.randbytes(self._random.choice((8, 40, 60)))
        length = len(self._messages[message])
        return Header(message, self._random.randbytes(ID_SIZE), length).encode()

    def _receive(self, source: str, datagram: bytes) -> None:
        """Send its own message, each PDU once, with excess bytes."""
        try:
            ack = decode(datagram)
        except RemoteProtocolError:
            return
        if not isinstance(ack, HeaderAck):
            return
        owner = decode_owner(ack.payload)
        if ack.code != Code.INVALID_DESTINATION or owner is None:
            return
        message = ack.message_id
        payload = self._messages.pop(message, None)
        if payload is None:
            return
        self._record.append(IpcSent(self._clock.now, FORGER, 1, message, source, payload))
        excess = self._random.randbytes(EXCESS)
        first = payload[:FIRST_PIECE]
        rest = payload[FIRST_PIECE:]
        header = Header(message, owner, len(payload), first if rest else first + excess)
        self._network.carry(FORGER, source, header.encode())
        if rest:
            self._network.carry(FORGER, source, Data(message, owner, 1, rest + excess).encode())


class Hoarder:
    """Starts messages and never finishes them, to lock out other senders.

    It announces messages of the largest size, sends a byte of each from time to time, and uses
    several remote addresses. An endpoint must hold only what has arrived, abort slow transfers, and
    keep room for other remotes.
    """

    def __init__(
        self,
        rate: float,
        unit: float,
        random: Random,
        clock: VirtualClock,
        network: DatagramNetwork,
    ) -> None:
        self.begins = True
        """Whether it starts new messages; it continues those that it started."""
        self._pause = unit / rate if rate else 0.0
        self._random = random
        self._clock = clock
        self._network = network
        self._peers: list[Peer] = []
        # By message id: for whom and from whom, the owner id once known, and the next number.
        self._messages: dict[bytes, tuple[Peer, str, bytes, int]] = {}
        for name in HOARDERS:
            network.receivers[name] = self._receive

    def start(self, peers: list[Peer]) -> None:
        """Start to attack the endpoints that have high limits and demand a minimum rate."""
        self._peers = [
            peer
            for peer in peers
            if min(peer.config.max_processed, peer.config.max_receives, peer.config.min_rate) > MANY
        ]
        if self._pause and self._peers:
            self._clock.after(self._pause, self._turn, None)

    def _turn(self, _: object) -> None:
        random = self._random
        for _ in range(random.randint(1, AT_ONCE) if self.begins else 0):
            peer, name = random.choice(self._peers), random.choice(HOARDERS)
            message = random.randbytes(ID_SIZE)
            self._messages[message] = peer, name, b"", 0
            probe = Header(message, random.randbytes(ID_SIZE), peer.config.max_message)
            self._network.carry(name, peer.name, probe.encode())
        for message in list(self._messages)[:-KEPT]:
            del self._messages[message]
        for message, (peer, name, owner, number) in self._messages.items():
            if number:
                drip = Data(message, owner, number, b"x").encode()
                self._network.carry(name, peer.name, drip)
        self._clock.after(self._pause, self._turn, None)

    def _receive(self, source: str, datagram: bytes) -> None:
        try:
            ack = decode(datagram)
        except RemoteProtocolError:
            return
        if isinstance(ack, Header | Data):
            return
        known = self._messages.get(ack.message_id)
        if known is None:
            return
        peer, name, owner, number = known
        if not number and isinstance(ack, HeaderAck) and ack.code == Code.INVALID_DESTINATION:
            stated = decode_owner(ack.payload)
            if stated is not None and stated != owner:
                self._messages[ack.message_id] = peer, name, stated, 0
                header = Header(ack.message_id, stated, peer.config.max_message, b"x")
                self._network.carry(name, source, header.encode())
        elif ack.code != Code.SUCCESS:
            del self._messages[ack.message_id]
        elif number == (0 if isinstance(ack, HeaderAck) else ack.sequence):
            self._messages[ack.message_id] = peer, name, owner, number + 1
