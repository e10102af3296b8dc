"""The states of the receiving half of a channel.

Theory of operation. A receiver is OPEN until the peer finishes or cancels the channel or the
application closes it. After a finish it is FINISHING until every reliable message has arrived and
every unreliable one is decided. CLOSE_RECEIVER, behind the last acks in one stream, ends it on the
wire. In CLOSING, the receiver waits until datagrams that arrived, and that the application may have
seen, are announced: only an announced number can be acked, and a message must not be both delivered
and nacked. DRAINING means that the channel no longer exists on the wire, while the application has
yet to take its queue or its handle.

`TRANSITIONS` is complete, and only this file assigns a receiver's state.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from aqueduct.errors import CloseCode, RemoteProtocolError
from aqueduct.protocol.half import Half
from aqueduct.wire.chanid import describe


class ReceiverState(Enum):
    """The state of a receiver."""

    __hash__ = object.__hash__  # Enum's own is slow, and each transition needs it

    OPEN = "open"
    FINISHING = "finishing"
    CLOSING = "closing"
    DRAINING = "draining"
    GONE = "gone"


class ReceiverInput(Enum):
    """A frame, command or decision that may change the state of a receiver."""

    __hash__ = object.__hash__

    MESSAGE = "MESSAGE"
    SENT_UNRELIABLE = "SENT_UNRELIABLE"
    FINISH_SENDER = "FINISH_SENDER"
    CANCEL_SENDER = "CANCEL_SENDER"
    CLOSE = "close"
    COMPLETE = "complete"
    SETTLE = "settled"
    DROP = "forgotten or lost"


TRANSITIONS: dict[tuple[ReceiverState, ReceiverInput], ReceiverState] = {
    (ReceiverState.OPEN, ReceiverInput.MESSAGE): ReceiverState.OPEN,
    (ReceiverState.OPEN, ReceiverInput.SENT_UNRELIABLE): ReceiverState.OPEN,
    (ReceiverState.OPEN, ReceiverInput.FINISH_SENDER): ReceiverState.FINISHING,
    (ReceiverState.OPEN, ReceiverInput.CANCEL_SENDER): ReceiverState.CLOSING,
    (ReceiverState.OPEN, ReceiverInput.CLOSE): ReceiverState.CLOSING,
    (ReceiverState.OPEN, ReceiverInput.DROP): ReceiverState.GONE,
    (ReceiverState.FINISHING, ReceiverInput.MESSAGE): ReceiverState.FINISHING,
    (ReceiverState.FINISHING, ReceiverInput.CLOSE): ReceiverState.CLOSING,
    (ReceiverState.FINISHING, ReceiverInput.COMPLETE): ReceiverState.DRAINING,
    (ReceiverState.FINISHING, ReceiverInput.DROP): ReceiverState.GONE,
    (ReceiverState.CLOSING, ReceiverInput.MESSAGE): ReceiverState.CLOSING,
    (ReceiverState.CLOSING, ReceiverInput.SENT_UNRELIABLE): ReceiverState.CLOSING,
    (ReceiverState.CLOSING, ReceiverInput.FINISH_SENDER): ReceiverState.CLOSING,
    (ReceiverState.CLOSING, ReceiverInput.CANCEL_SENDER): ReceiverState.CLOSING,
    (ReceiverState.CLOSING, ReceiverInput.CLOSE): ReceiverState.CLOSING,
    (ReceiverState.CLOSING, ReceiverInput.COMPLETE): ReceiverState.DRAINING,
    (ReceiverState.CLOSING, ReceiverInput.DROP): ReceiverState.GONE,
    (ReceiverState.DRAINING, ReceiverInput.CLOSE): ReceiverState.DRAINING,
    (ReceiverState.DRAINING, ReceiverInput.SETTLE): ReceiverState.GONE,
    (ReceiverState.DRAINING, ReceiverInput.DROP): ReceiverState.GONE,
}
"""The next state for each state and input. A missing entry violates the input's rule below."""

RULES: dict[ReceiverInput, str] = {
    ReceiverInput.SENT_UNRELIABLE: "AQ-FINISH-3",
    ReceiverInput.FINISH_SENDER: "AQ-FINISH-3",
    ReceiverInput.CANCEL_SENDER: "AQ-CANCEL-3",
}


# Python finds a module's name ten times faster than an enum's member.
_OPEN: Final = ReceiverState.OPEN
_DRAINING: Final = ReceiverState.DRAINING
_GONE: Final = ReceiverState.GONE


class ReceiverStateMachine(Half):
    """The state of one receiver, and the only code that changes it after OPEN."""

    __slots__ = ("state",)

    state: ReceiverState

    def is_open(self) -> bool:
        """Return whether this half is OPEN: neither side has begun to end it."""
        return self.state is _OPEN

    def is_over(self) -> bool:
        """Return whether this half has ended on the wire."""
        state = self.state
        return state is _DRAINING or state is _GONE

    def _move(self, event: ReceiverInput) -> None:
        new = TRANSITIONS.get((self.state, event))
        if new is None:
            rule = RULES[event]
            raise self._violation(rule, f"{event.value} on a channel that is {self.state.value}")
        self.state = new

    def _violation(
        self, rule: str, reason: str, code: CloseCode = CloseCode.PROTOCOL_VIOLATION
    ) -> RemoteProtocolError:
        return RemoteProtocolError(rule, f"{reason} ({describe(self.channel)})", code)
