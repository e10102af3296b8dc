"""One incoming transfer: its pieces in order, each acknowledged, until it is complete and taken.

The last PDU is acknowledged when the application has taken the message: success at the sender means
that the message was delivered. Only this file assigns the state of an incoming transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto

from aqueduct.ipc.core.pdu import data_ack, header_ack
from aqueduct.protocol.timers import NEVER

SMALL = 4_096
"""Bytes. Smaller pieces are joined as they arrive: as objects they would take far more memory."""


class IncomingState(Enum):
    """The state of an incoming transfer."""

    __hash__ = object.__hash__  # Enum's own is slow, and each transition needs it

    BEGUN = auto()
    RECEIVING = auto()
    WHOLE = auto()
    PROCESSED = auto()
    ABORTED = auto()


class IncomingInput(Enum):
    """An input that may change the state of an incoming transfer."""

    __hash__ = object.__hash__

    PIECE = "piece"
    LAST_PIECE = "last piece"
    TAKEN = "taken"
    REFUSED = "refused"
    ABORT = "empty DATA"
    TIMER = "receive data timer"
    RESET = "reset"


TRANSITIONS = {
    (IncomingState.BEGUN, IncomingInput.PIECE): IncomingState.RECEIVING,
    (IncomingState.BEGUN, IncomingInput.LAST_PIECE): IncomingState.WHOLE,
    (IncomingState.RECEIVING, IncomingInput.PIECE): IncomingState.RECEIVING,
    (IncomingState.RECEIVING, IncomingInput.LAST_PIECE): IncomingState.WHOLE,
    (IncomingState.RECEIVING, IncomingInput.ABORT): IncomingState.ABORTED,
    (IncomingState.RECEIVING, IncomingInput.TIMER): IncomingState.ABORTED,
    (IncomingState.RECEIVING, IncomingInput.RESET): IncomingState.ABORTED,
    (IncomingState.WHOLE, IncomingInput.TAKEN): IncomingState.PROCESSED,
    (IncomingState.WHOLE, IncomingInput.REFUSED): IncomingState.ABORTED,
    (IncomingState.WHOLE, IncomingInput.ABORT): IncomingState.ABORTED,
}


class RemoteAccount:
    """The memory of one remote: its messages that were not taken, and their arrived bytes."""

    __slots__ = ("count", "held")

    def __init__(self) -> None:
        self.count = 0
        self.held = 0


class IncomingTransfer:
    """One incoming message."""

    __slots__ = (
        "_on_timer",
        "_pieces",
        "account",
        "begun",
        "deadline",
        "expected",
        "length",
        "max_data",
        "message_id",
        "missing",
        "owner",
        "remote",
        "state",
        "wake_at",
    )

    def __init__(
        self,
        message_id: bytes,
        remote: Hashable,
        owner: bytes,
        length: int,
        max_data: int,
        account: RemoteAccount,
        now: float,
        on_timer: Callable[[IncomingTransfer, float], None],
    ) -> None:
        self._on_timer = on_timer
        self.account = account
        """The account of the remote that sent the HEADER."""
        self.begun = now
        self.message_id = message_id
        self.remote = remote
        """The source of its last PDU, and the destination of the ack."""
        self.owner = owner
        """The endpoint's owner id when it started; later ones do not apply (IPC-RECV-9)."""
        self.length = length
        self.max_data = max_data
        """The most data per PDU when it started; later limits do not apply (IPC-RECV-10)."""
        self.expected = 0
        """The number of the next PDU; the HEADER is 0."""
        self.state = IncomingState.BEGUN
        self._pieces: list[bytes | bytearray] = []
        self.missing = length
        """Bytes that have not arrived."""
        self.deadline = NEVER
        self.wake_at = NEVER

    def handle_timer(self, now: float) -> None:
        """Act on the wake-up."""
        self._on_timer(self, now)

    @property
    def arrived(self) -> int:
        """Bytes that have arrived."""
        return self.length - self.missing

    def is_behind(self, now: float, timeout: float) -> bool:
        """Return whether the transfer is too slow to finish within a timeout (IPC-FLOW-9)."""
        return (now - self.begun - timeout / 4) * self.length > timeout * self.arrived

    def add(self, data: bytes) -> bool:
        """Add the data of the expected PDU; return whether the message is complete."""
        if len(data) > self.missing:
            data = data[: self.missing]  # IPC-RECV-1
        self.missing -= len(data)
        if len(data) >= SMALL or not (self.missing or self._pieces):
            self._pieces.append(data)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))
        self.expected += 1
        whole = self.missing == 0
        self._move(IncomingInput.LAST_PIECE if whole else IncomingInput.PIECE)
        return whole

    def last_ack(self, code: int = 0) -> bytes:
        """Return the ack of the last PDU that was added."""
        if self.expected <= 1:
            return header_ack(self.message_id, code)
        return data_ack(self.message_id, self.expected - 1, code)

    def notice(self) -> bytes:
        """Return the ack for a duplicate of the last PDU: complete, but not taken yet.

        It has the number after the last PDU, so senders that do not know notices ignore it.
        """
        return data_ack(self.message_id, self.expected, 0)

    def payload(self) -> bytes:
        """Return the complete message, and release it."""
        pieces = self._pieces
        self._pieces = []
        if len(pieces) == 1 and isinstance(pieces[0], bytes):
            return pieces[0]
        return b"".join(pieces)

    def take(self) -> None:
        """End the transfer: the application took the message."""
        self._end(IncomingInput.TAKEN)

    def refuse(self) -> None:
        """End the transfer: the application refused the message."""
        self._end(IncomingInput.REFUSED)

    def abort(self) -> None:
        """End the transfer: the sender aborted it."""
        self._end(IncomingInput.ABORT)

    def time_out(self) -> None:
        """End the transfer: the receive data timer elapsed."""
        self._end(IncomingInput.TIMER)

    def reset(self) -> None:
        """End the transfer: this side aborts it."""
        self._end(IncomingInput.RESET)

    def _end(self, cause: IncomingInput) -> None:
        self._move(cause)
        self._pieces = []
        self.deadline = NEVER

    def _move(self, cause: IncomingInput) -> None:
        self.state = TRANSITIONS[self.state, cause]
