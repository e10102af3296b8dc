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

from aqueduct.errors import CloseCode, RemoteProtocolError
from aqueduct.protocol.half import Context, Half, Owner
from aqueduct.wire.chanid import describe


class State(Enum):
    """The state of a receiver."""

    __hash__ = object.__hash__  # Enum's own is slow, and each transition needs it

    OPEN = "open"
    FINISHING = "finishing"
    CLOSING = "closing"
    DRAINING = "draining"
    GONE = "gone"


class Input(Enum):
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


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.OPEN, Input.MESSAGE): State.OPEN,
    (State.OPEN, Input.SENT_UNRELIABLE): State.OPEN,
    (State.OPEN, Input.FINISH_SENDER): State.FINISHING,
    (State.OPEN, Input.CANCEL_SENDER): State.CLOSING,
    (State.OPEN, Input.CLOSE): State.CLOSING,
    (State.OPEN, Input.DROP): State.GONE,
    (State.FINISHING, Input.MESSAGE): State.FINISHING,
    (State.FINISHING, Input.CLOSE): State.CLOSING,
    (State.FINISHING, Input.COMPLETE): State.DRAINING,
    (State.FINISHING, Input.DROP): State.GONE,
    (State.CLOSING, Input.MESSAGE): State.CLOSING,
    (State.CLOSING, Input.SENT_UNRELIABLE): State.CLOSING,
    (State.CLOSING, Input.FINISH_SENDER): State.CLOSING,
    (State.CLOSING, Input.CANCEL_SENDER): State.CLOSING,
    (State.CLOSING, Input.CLOSE): State.CLOSING,
    (State.CLOSING, Input.COMPLETE): State.DRAINING,
    (State.CLOSING, Input.DROP): State.GONE,
    (State.DRAINING, Input.CLOSE): State.DRAINING,
    (State.DRAINING, Input.SETTLE): State.GONE,
    (State.DRAINING, Input.DROP): State.GONE,
}
"""The next state for each state and input. A missing entry violates the input's rule below."""

RULES: dict[Input, str] = {
    Input.SENT_UNRELIABLE: "AQ-FINISH-3",
    Input.FINISH_SENDER: "AQ-FINISH-3",
    Input.CANCEL_SENDER: "AQ-CANCEL-3",
}


class ReceiverStateMachine(Half):
    """The state of one receiver, and the only code that changes it."""

    __slots__ = ("state",)

    def __init__(self, context: Context, channel: int, owner: Owner) -> None:
        super().__init__(context, channel, owner)
        self.state = State.OPEN

    def is_open(self) -> bool:
        """Return whether nothing has begun to end this half."""
        return self.state is State.OPEN

    def is_over(self) -> bool:
        """Return whether this half has ended on the wire."""
        return self.state is State.DRAINING or self.state is State.GONE

    def _move(self, event: Input) -> None:
        new = TRANSITIONS.get((self.state, event))
        if new is None:
            rule = RULES[event]
            raise self._violation(rule, f"{event.value} on a channel that is {self.state.value}")
        self.state = new

    def _violation(
        self, rule: str, reason: str, code: CloseCode = CloseCode.PROTOCOL_VIOLATION
    ) -> RemoteProtocolError:
        return RemoteProtocolError(rule, f"{reason} ({describe(self.channel)})", code)
