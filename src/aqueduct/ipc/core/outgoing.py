"""The transfer of one message: stop-and-wait, one PDU under way at a time.

A message is cut into pieces. The first travels in a HEADER, the others in DATA PDUs, and each is
sent again and again until it is acknowledged or the time for it is over. Only this file assigns the
state of a transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto

from aqueduct.ipc.core.pdu import INCARNATION, Code, data_head, header_head
from aqueduct.protocol.timers import NEVER

MAX_CORRECTIONS = 4
"""Answers that make a message go out again at once; after them it waits for its backoff, so that a
peer which always finds fault costs no more than one which never answers (IPC-SEND-16)."""


class OutgoingState(Enum):
    """Where a transfer stands."""

    __hash__ = object.__hash__  # Enum's own is slow, and each transition needs it

    WAITING = auto()
    HEADER = auto()
    DATA = auto()
    DELIVERED = auto()
    FAILED = auto()


class OutgoingInput(Enum):
    """What can happen to a transfer."""

    __hash__ = object.__hash__

    START = "room"
    CORRECTED = "correction"
    ACKED = "ack"
    LAST_ACKED = "last ack"
    REFUSED = "error code"
    TIMED_OUT = "receive ack timer"
    RESET = "reset"


TRANSITIONS = {
    (OutgoingState.WAITING, OutgoingInput.START): OutgoingState.HEADER,
    (OutgoingState.WAITING, OutgoingInput.TIMED_OUT): OutgoingState.FAILED,
    (OutgoingState.WAITING, OutgoingInput.RESET): OutgoingState.FAILED,
    (OutgoingState.HEADER, OutgoingInput.CORRECTED): OutgoingState.HEADER,
    (OutgoingState.HEADER, OutgoingInput.ACKED): OutgoingState.DATA,
    (OutgoingState.HEADER, OutgoingInput.LAST_ACKED): OutgoingState.DELIVERED,
    (OutgoingState.HEADER, OutgoingInput.REFUSED): OutgoingState.FAILED,
    (OutgoingState.HEADER, OutgoingInput.TIMED_OUT): OutgoingState.FAILED,
    (OutgoingState.HEADER, OutgoingInput.RESET): OutgoingState.FAILED,
    (OutgoingState.DATA, OutgoingInput.ACKED): OutgoingState.DATA,
    (OutgoingState.DATA, OutgoingInput.LAST_ACKED): OutgoingState.DELIVERED,
    (OutgoingState.DATA, OutgoingInput.REFUSED): OutgoingState.FAILED,
    (OutgoingState.DATA, OutgoingInput.TIMED_OUT): OutgoingState.FAILED,
    (OutgoingState.DATA, OutgoingInput.RESET): OutgoingState.FAILED,
}


class OutgoingTransfer:
    """One message on its way out."""

    __slots__ = (
        "_on_timer",
        "attempts",
        "charge",
        "code",
        "corrections",
        "deadline",
        "destination",
        "exposed",
        "guessed",
        "held",
        "index",
        "message_id",
        "payload",
        "piece",
        "remote",
        "retry_at",
        "state",
        "wake_at",
        "wire_id",
    )

    def __init__(
        self,
        message_id: bytes,
        remote: Hashable,
        payload: bytes,
        piece: int,
        deadline: float,
        on_timer: Callable[[OutgoingTransfer, float], None],
    ) -> None:
        self._on_timer = on_timer
        self.message_id = message_id
        """What the application knows it by."""
        self.wire_id = message_id
        """What its PDUs name it: another id once it was cut anew."""
        self.remote = remote
        self.payload = payload
        self.piece = piece
        """The most data in a PDU."""
        self.state = OutgoingState.WAITING
        self.destination = b""
        self.guessed = False
        """Whether the destination id is a random one, which nobody can own."""
        self.exposed = False
        """Whether somebody may have got all of it: then nobody else may be sent it (IPC-ID-4)."""
        self.held = False
        """Whether the receiver said that it has all of it, and only waits for its application."""
        self.index = 0
        """Of the PDU whose ack is pending; 0 is the HEADER."""
        self.attempts = 0
        """How often the PDU at that index was sent, as it is now."""
        self.corrections = 0
        self.charge = 0
        """The data it has under way, while it has."""
        self.deadline = deadline
        """When the receive ack timer elapses; no id is followed after it (IPC-ID-5)."""
        self.retry_at = NEVER
        self.wake_at = NEVER
        self.code: int = Code.SUCCESS

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state is OutgoingState.DELIVERED or self.state is OutgoingState.FAILED

    def handle_timer(self, now: float) -> None:
        """The time to wake has come."""
        self._on_timer(self, now)

    def start(self, destination: bytes, guessed: bool, piece: int, deadline: float) -> None:
        """Begin with the HEADER."""
        self._move(OutgoingInput.START)
        self.piece = piece
        self.destination = destination
        self.guessed = guessed
        self.deadline = deadline

    def current(self) -> tuple[bytes, bytes | memoryview]:
        """The PDU at the current index: everything up to its data, and its data (IPC-SEND-2)."""
        self.attempts += 1
        payload = self.payload
        piece = self.piece
        if self.state is OutgoingState.DATA:
            start = self.index * piece
            if start + piece >= len(payload):
                self.exposed = True
            head = data_head(self.wire_id, self.destination, self.index)
            return head, memoryview(payload)[start : start + (1 if self.held else piece)]
        head = header_head(self.wire_id, self.destination, len(payload))
        if len(payload) > piece:
            return head, memoryview(payload)[:piece]
        if not self.guessed:
            self.exposed = True
        return head, payload[:1] if self.held else payload

    @property
    def current_size(self) -> int:
        """How much data the PDU at the current index carries."""
        return min(self.piece, len(self.payload) - self.index * self.piece)

    @property
    def is_last(self) -> bool:
        """Whether the PDU at the current index completes the message."""
        return (self.index + 1) * self.piece >= len(self.payload)

    def abort(self) -> list[bytes]:
        """What makes a receiver give the message up at once (IPC-SEND-14, IPC-SEND-15)."""
        if self.state is OutgoingState.DATA:
            return [data_head(self.wire_id, self.destination, self.index)]
        if not self.payload:
            return []
        return [
            header_head(self.wire_id, self.destination, len(self.payload)),
            data_head(self.wire_id, self.destination, 1),
        ]

    def redirect(self, owner: bytes) -> bool:
        """Go on with another destination id; False if that might deliver it twice (IPC-ID-4)."""
        if self.exposed and owner[:INCARNATION] != self.destination[:INCARNATION]:
            return False
        self._correct()
        self.destination = owner
        self.guessed = False
        return True

    def refragment(self, piece: int, fresh_id: bytes) -> bool:
        """Go on with smaller PDUs; False if the receiver might mistake them (IPC-SEND-10).

        No answer tells which HEADER it answers. The larger one may have been accepted after all,
        by a receiver that has since changed its mind, and then what follows would be put in the
        wrong place. So the message goes on under another id, unless somebody may have got all of
        it: then it keeps its id, lest it be taken twice, and is cut once only.
        """
        whole = len(self.payload) <= self.piece
        if self.exposed and not whole:
            return False
        self._correct()
        self.piece = piece
        if not self.exposed:
            self.wire_id = fresh_id
        return True

    @property
    def may_hurry(self) -> bool:
        """Whether a corrected message goes out again at once."""
        return self.corrections <= MAX_CORRECTIONS

    def advance(self, deadline: float) -> bool:
        """The current PDU was acknowledged; returns whether it was the last (IPC-SEND-12)."""
        if self.is_last:
            self._end(OutgoingInput.LAST_ACKED, Code.SUCCESS)
            return True
        self._move(OutgoingInput.ACKED)
        self.index += 1
        self.attempts = 0
        self.deadline = deadline
        self.retry_at = NEVER
        return False

    def refuse(self, code: int) -> None:
        """The peer answered with an error code, or with one that makes going on unsafe."""
        self._end(OutgoingInput.REFUSED, code)

    def time_out(self) -> None:
        """The receive ack timer elapsed."""
        self._end(OutgoingInput.TIMED_OUT, Code.SEND_TIMEOUT)

    def reset(self, code: int) -> None:
        """This side gives it up."""
        self._end(OutgoingInput.RESET, code)

    def _correct(self) -> None:
        self._move(OutgoingInput.CORRECTED)
        self.corrections += 1
        self.attempts = 0
        self.held = False

    def _end(self, cause: OutgoingInput, code: int) -> None:
        self._move(cause)
        self.code = code
        self.retry_at = NEVER
        self.payload = b""

    def _move(self, cause: OutgoingInput) -> None:
        self.state = TRANSITIONS[self.state, cause]
