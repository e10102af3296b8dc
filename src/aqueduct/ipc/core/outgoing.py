"""One outgoing transfer: stop-and-wait, one PDU in flight at a time.

A message is split into pieces. The first is sent in a HEADER, the others in DATA PDUs; each is
retransmitted until it is acknowledged or its deadline has passed. Only this file assigns the state
of an outgoing transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto

from aqueduct.ipc.core.pdu import INCARNATION, Code, data_head, header_head
from aqueduct.protocol.timers import NEVER

MAX_CORRECTIONS = 4
"""Corrections after which a message is retransmitted at once; further ones wait for the backoff, so
that a peer that always corrects costs no more than one that never answers (IPC-SEND-16)."""


class OutgoingState(Enum):
    """The state of an outgoing transfer."""

    __hash__ = object.__hash__  # Enum's own is slow, and each transition needs it

    WAITING = auto()
    HEADER = auto()
    DATA = auto()
    DELIVERED = auto()
    FAILED = auto()


class OutgoingInput(Enum):
    """An input that may change the state of an outgoing transfer."""

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
    """One outgoing message."""

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
        """The id that the application knows."""
        self.wire_id = message_id
        """The id in its PDUs: another one after `refragment`."""
        self.remote = remote
        self.payload = payload
        self.piece = piece
        """The most data per PDU."""
        self.state = OutgoingState.WAITING
        self.destination = b""
        self.guessed = False
        """Whether the destination id is random, so that no endpoint owns it."""
        self.exposed = False
        """Whether a receiver may have all of it: then no other may be sent it (IPC-ID-4)."""
        self.held = False
        """Whether the receiver has all of it, and waits for its application."""
        self.index = 0
        """The index of the PDU whose ack is pending; 0 is the HEADER."""
        self.attempts = 0
        """How often that PDU was sent in its current form."""
        self.corrections = 0
        self.charge = 0
        """Bytes that it counts in the congestion window, or 0."""
        self.deadline = deadline
        """When the receive ack timer elapses; no correction is applied after it (IPC-ID-5)."""
        self.retry_at = NEVER
        self.wake_at = NEVER
        self.code: int = Code.SUCCESS

    @property
    def ended(self) -> bool:
        """Whether the transfer has ended."""
        return self.state is OutgoingState.DELIVERED or self.state is OutgoingState.FAILED

    def handle_timer(self, now: float) -> None:
        """Act on the wake-up."""
        self._on_timer(self, now)

    def start(self, destination: bytes, guessed: bool, piece: int, deadline: float) -> None:
        """Start with the HEADER."""
        self._move(OutgoingInput.START)
        self.piece = piece
        self.destination = destination
        self.guessed = guessed
        self.deadline = deadline

    def current(self) -> tuple[bytes, bytes | memoryview]:
        """Return the PDU at the current index, as its head and its data (IPC-SEND-2)."""
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
        """The bytes of data in the PDU at the current index."""
        return min(self.piece, len(self.payload) - self.index * self.piece)

    @property
    def is_last(self) -> bool:
        """Whether the PDU at the current index completes the message."""
        return (self.index + 1) * self.piece >= len(self.payload)

    def abort(self) -> list[bytes]:
        """Return the PDUs that abort the transfer at the receiver (IPC-SEND-14, IPC-SEND-15)."""
        if self.state is OutgoingState.DATA:
            return [data_head(self.wire_id, self.destination, self.index)]
        if not self.payload:
            return []
        return [
            header_head(self.wire_id, self.destination, len(self.payload)),
            data_head(self.wire_id, self.destination, 1),
        ]

    def redirect(self, owner: bytes) -> bool:
        """Change the destination id; return False if that might deliver it twice (IPC-ID-4)."""
        if self.exposed and owner[:INCARNATION] != self.destination[:INCARNATION]:
            return False
        self._correct()
        self.destination = owner
        self.guessed = False
        return True

    def refragment(self, piece: int, fresh_id: bytes) -> bool:
        """Continue with smaller PDUs; return False if the receiver might misread them.

        IPC-SEND-10: an ack does not say which HEADER it answers. The receiver may have accepted the
        larger one before it changed its limit, and would then put what follows at the wrong offset.
        So the message continues under another id, unless a receiver may have all of it: then it
        keeps its id, to prevent a second delivery, and is split only once.
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
    def may_retransmit_now(self) -> bool:
        """Whether a corrected message is retransmitted at once."""
        return self.corrections <= MAX_CORRECTIONS

    def advance(self, deadline: float) -> bool:
        """Process the ack of the current PDU; return whether it was the last (IPC-SEND-12)."""
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
        """Fail the transfer: the peer answered with an error, or continuing is unsafe."""
        self._end(OutgoingInput.REFUSED, code)

    def time_out(self) -> None:
        """Fail the transfer: the receive ack timer elapsed."""
        self._end(OutgoingInput.TIMED_OUT, Code.SEND_TIMEOUT)

    def reset(self, code: int) -> None:
        """Fail the transfer: this side aborts it."""
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
