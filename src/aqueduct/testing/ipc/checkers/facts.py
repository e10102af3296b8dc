"""What is known of each message and each life of an endpoint, computed from the record.

PDUs are parsed here by the layout of the specification, independently of the decoder of the
core.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.testing.checkers.rules import EPSILON, NEVER
from aqueduct.testing.ipc.record import (
    Cancelled,
    IpcArrived,
    IpcEnded,
    IpcFault,
    IpcRecord,
    IpcRefused,
    IpcSent,
    IpcTaken,
    LifeStarted,
    LifeStopped,
    OwnerIdChanged,
    PduArrived,
    PduSent,
    RemoteFailed,
    Reported,
    Resized,
)

DATA: Final = 1
DATA_ACK: Final = 2
HEADER: Final = 3
HEADER_ACK: Final = 4

SUCCESS: Final = 0
INVALID_DESTINATION: Final = 2
PDU_TOO_LARGE: Final = 5
APPLICATION: Final = -1
RESET: Final = -2
SEND_TIMEOUT: Final = -4
PEER_RESTARTED: Final = -6

HEAD: Final = 42
"""Bytes of a HEADER or DATA PDU before its data."""
SMALLEST_PDU: Final = 512
MAX_ACK: Final = 512
TAG_SIZE: Final = 8
"""Bytes at the start of a message that identify it, if it has that many."""

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")

Life = tuple[str, int]


class Pass(NamedTuple):
    """One PDU of a message that its sender sent."""

    time: float
    wire_id: bytes
    opcode: int
    number: int
    destination: bytes
    size: int
    abort: bool


class Answer(NamedTuple):
    """One ack of a message that its sender received."""

    time: float
    wire_id: bytes
    source: str
    opcode: int
    number: int
    code: int
    payload: bytes
    passes: int
    """The number of PDUs of the message sent by then."""


@dataclass(slots=True)
class IpcMessageFacts:
    """One message."""

    sent: IpcSent
    ends: list[IpcEnded] = field(default_factory=list)
    takes: list[IpcTaken] = field(default_factory=list)
    refusals: list[IpcRefused] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    """The PDUs sent, without aborts."""
    aborts: list[Pass] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    reports: list[float] = field(default_factory=list)
    cancelled: float = NEVER

    @property
    def end(self) -> IpcEnded | None:
        """How the send ended; None if it did not, or its endpoint crashed."""
        return self.ends[0] if self.ends else None


@dataclass(slots=True)
class LifeFacts:
    """One life of an endpoint."""

    config: IpcSettings
    reports_sent: bool
    limits: list[tuple[float, int]]
    """The maximum PDU sizes, with the time of each change."""
    stopped: LifeStopped | None = None
    owners: list[tuple[float, bytes]] = field(default_factory=list)
    heard: dict[str, list[float]] = field(default_factory=dict)
    """When acks arrived, by source."""
    transient_errors: dict[str, list[float]] = field(default_factory=dict)
    """When the transport reported a remote as temporarily unreachable."""
    unreachable: dict[str, list[float]] = field(default_factory=dict)
    """When it reported a remote as permanently unreachable."""
    whole: dict[bytes, float] = field(default_factory=dict)
    headers: dict[bytes, list[tuple[float, bytes]]] = field(default_factory=dict)
    """HEADER PDUs received for the current owner id, by message id: time and owner id."""
    aborts: dict[bytes, list[tuple[float, bytes]]] = field(default_factory=dict)
    """Empty DATA PDUs received, by message id: time and owner id."""
    sent: int = 0
    failed: int = 0
    taken: int = 0
    refused: int = 0
    pdus_sent: int = 0
    pdus_received: int = 0

    def max_pdu(self, time: float) -> int:
        """Return the maximum PDU size at a time; at the instant of a change, the larger one."""
        sizes = [self.limits[0][1]]
        for when, size in self.limits:
            if when < time - EPSILON:
                sizes = [size]
            elif when <= time + EPSILON:
                sizes.append(size)
        return max(sizes)


class IpcFacts:
    """The facts of a run, by message and by life."""

    def __init__(self, record: IpcRecord) -> None:
        self.record = record
        self.lives: dict[Life, LifeFacts] = {}
        self.messages: dict[bytes, IpcMessageFacts] = {}
        self.strange_takes: list[IpcTaken] = []
        """Messages taken that were never sent."""
        self.strange_ends: list[IpcEnded] = []
        self.large_acks: list[PduSent] = []
        self.broken: list[IpcFault] = []
        self.owner_ids: dict[bytes, Life] = {}
        self._tags: dict[bytes, IpcMessageFacts] = {}
        # A message may be sent under another id than the application knows.
        self._by_wire_id: dict[bytes, IpcMessageFacts] = {}
        handlers = {
            LifeStarted: self._began,
            LifeStopped: self._stopped,
            OwnerIdChanged: self._owned,
            IpcSent: self._sent,
            Cancelled: self._cancelled,
            IpcEnded: self._finished,
            IpcArrived: self._whole,
            IpcTaken: self._took,
            IpcRefused: self._refused,
            Resized: self._resized,
            RemoteFailed: self._remote_failed,
            PduSent: self._pdu_sent,
            PduArrived: self._pdu_arrived,
            Reported: self._reported,
            IpcFault: self.broken.append,
        }
        for entry in record.entries:
            handler = handlers.get(type(entry))
            if handler is not None:
                handler(entry)  # type: ignore[operator]

    def life_of(self, message: IpcMessageFacts) -> LifeFacts | None:
        """Return the life that sent a message; None if an attacker sent it."""
        return self.lives.get((message.sent.endpoint, message.sent.life))

    def _began(self, entry: LifeStarted) -> None:
        limits = [(entry.time, entry.config.max_pdu)]
        life = LifeFacts(entry.config, entry.reports_sent, limits)
        self.lives[entry.endpoint, entry.life] = life

    def _stopped(self, entry: LifeStopped) -> None:
        self.lives[entry.endpoint, entry.life].stopped = entry

    def _owned(self, entry: OwnerIdChanged) -> None:
        self.lives[entry.endpoint, entry.life].owners.append((entry.time, entry.owner))
        self.owner_ids[entry.owner] = (entry.endpoint, entry.life)

    def _sent(self, entry: IpcSent) -> None:
        message = IpcMessageFacts(entry)
        self.messages[entry.message] = message
        self._by_wire_id[entry.message] = message
        if len(entry.payload) >= TAG_SIZE:
            self._tags[entry.payload[:TAG_SIZE]] = message

    def _cancelled(self, entry: Cancelled) -> None:
        self.messages[entry.message].cancelled = entry.time

    def _finished(self, entry: IpcEnded) -> None:
        life = self.lives[entry.endpoint, entry.life]
        if entry.code == SUCCESS:
            life.sent += 1
        else:
            life.failed += 1
        message = self.messages.get(entry.message)
        if message is None:
            self.strange_ends.append(entry)
        else:
            message.ends.append(entry)

    def _whole(self, entry: IpcArrived) -> None:
        self.lives[entry.endpoint, entry.life].whole[entry.message] = entry.time

    def _took(self, entry: IpcTaken) -> None:
        self.lives[entry.endpoint, entry.life].taken += 1
        message = self._by_wire_id.get(entry.message) or self._tags.get(entry.payload[:TAG_SIZE])
        if message is None:
            self.strange_takes.append(entry)
        else:
            message.takes.append(entry)

    def _refused(self, entry: IpcRefused) -> None:
        self.lives[entry.endpoint, entry.life].refused += 1
        message = self._by_wire_id.get(entry.message)
        if message is not None:
            message.refusals.append(entry)

    def _resized(self, entry: Resized) -> None:
        self.lives[entry.endpoint, entry.life].limits.append((entry.time, entry.max_pdu))

    def _remote_failed(self, entry: RemoteFailed) -> None:
        life = self.lives[entry.endpoint, entry.life]
        times = life.unreachable if entry.permanent else life.transient_errors
        times.setdefault(entry.remote, []).append(entry.time)

    def _reported(self, entry: Reported) -> None:
        message = self.messages.get(entry.message)
        if message is not None:
            message.reports.append(entry.time)

    def _pdu_sent(self, entry: PduSent) -> None:
        self.lives[entry.endpoint, entry.life].pdus_sent += 1
        pdu = entry.pdu
        opcode = pdu[0]
        if opcode in (DATA_ACK, HEADER_ACK):
            if len(pdu) > MAX_ACK:
                self.large_acks.append(entry)
            return
        message = self._by_wire_id.get(pdu[6:22])
        data = len(pdu) - HEAD
        if message is None and opcode == HEADER and data >= TAG_SIZE:
            message = self._tags.get(pdu[HEAD : HEAD + TAG_SIZE])
            if message is not None:
                self._by_wire_id[pdu[6:22]] = message
        if message is None:
            return
        number = _INT32.unpack_from(pdu, 38)[0]
        index = 0 if opcode == HEADER else number
        abort = data == 0 and (opcode == DATA or number > 0)
        each = Pass(entry.time, pdu[6:22], opcode, index, pdu[22:38], data, abort)
        (message.aborts if abort else message.passes).append(each)

    def _pdu_arrived(self, entry: PduArrived) -> None:
        life = self.lives[entry.endpoint, entry.life]
        life.pdus_received += 1
        pdu = entry.pdu
        if len(pdu) < 24:
            return
        opcode = pdu[0]
        wire_id = pdu[6:22]
        if opcode in (HEADER_ACK, DATA_ACK) and len(pdu) <= MAX_ACK:
            life.heard.setdefault(entry.source, []).append(entry.time)
            message = self._by_wire_id.get(wire_id)
            if message is not None and (entry.endpoint, entry.life) == (
                message.sent.endpoint,
                message.sent.life,
            ):
                message.answers.append(_answer(entry, opcode, len(message.passes)))
        elif opcode == HEADER and len(pdu) >= HEAD:
            if life.owners and pdu[22:38] == life.owners[-1][1]:
                life.headers.setdefault(wire_id, []).append((entry.time, pdu[22:38]))
        elif opcode == DATA and len(pdu) == HEAD:
            life.aborts.setdefault(wire_id, []).append((entry.time, pdu[22:38]))


def _answer(entry: PduArrived, opcode: int, passes: int) -> Answer:
    pdu = entry.pdu
    index = 0
    at = 22
    if opcode == DATA_ACK and len(pdu) >= 28:
        index = _INT32.unpack_from(pdu, 22)[0]
        at = 26
    code = _INT16.unpack_from(pdu, at)[0]
    return Answer(entry.time, pdu[6:22], entry.source, opcode, index, code, pdu[at + 2 :], passes)


def stated_size(answer: Answer) -> int | None:
    """Return the maximum data per PDU that an answer asks for, or None."""
    if answer.code != PDU_TOO_LARGE or answer.opcode != HEADER_ACK or len(answer.payload) != 4:
        return None
    size: int = _INT32.unpack(answer.payload)[0]
    return size if size >= SMALLEST_PDU - HEAD else None
