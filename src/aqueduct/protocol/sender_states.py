"""The states of the sending half of a channel.

Theory of operation. A sender is OPEN until its application finishes or cancels it; either is sent
once and is final. It then waits for CLOSE_RECEIVER, which settles every message: those not acked by
then are nacked. After that the channel no longer exists on the wire, but a sender whose channel is
still pending stays CLOSED until its lineage is known, since only then is an acked message known to
be delivered; and a sender whose handle has not reached the application stays CLOSED until it has.

`TRANSITIONS` is complete, and only this file assigns a sender's state.
"""

from __future__ import annotations

from enum import Enum

from aqueduct.errors import ChannelClosed, ReceiverClosed
from aqueduct.protocol.events import End
from aqueduct.protocol.half import Context, Half, Owner
from aqueduct.wire.chanid import describe


class State(Enum):
    """The state of a sender."""

    __hash__ = object.__hash__  # Enum's own is slow, and each transition needs it

    OPEN = "open"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    CLOSED = "closed"
    GONE = "gone"


class Input(Enum):
    """A command, frame or decision that may change the state of a sender."""

    __hash__ = object.__hash__

    SEND = "send"
    FINISH = "finish"
    CANCEL = "cancel"
    CLOSE_RECEIVER = "CLOSE_RECEIVER"
    SETTLE = "settled"
    DROP = "forgotten or lost"


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.OPEN, Input.SEND): State.OPEN,
    (State.OPEN, Input.FINISH): State.FINISHED,
    (State.OPEN, Input.CANCEL): State.CANCELLED,
    (State.OPEN, Input.CLOSE_RECEIVER): State.CLOSED,
    (State.OPEN, Input.DROP): State.GONE,
    (State.FINISHED, Input.FINISH): State.FINISHED,
    (State.FINISHED, Input.CANCEL): State.FINISHED,
    (State.FINISHED, Input.CLOSE_RECEIVER): State.CLOSED,
    (State.FINISHED, Input.DROP): State.GONE,
    (State.CANCELLED, Input.FINISH): State.CANCELLED,
    (State.CANCELLED, Input.CANCEL): State.CANCELLED,
    (State.CANCELLED, Input.CLOSE_RECEIVER): State.CLOSED,
    (State.CANCELLED, Input.DROP): State.GONE,
    (State.CLOSED, Input.FINISH): State.CLOSED,
    (State.CLOSED, Input.CANCEL): State.CLOSED,
    (State.CLOSED, Input.SETTLE): State.GONE,
    (State.CLOSED, Input.DROP): State.GONE,
}
"""The next state for each state and input. A missing entry is an error of the input's cause."""


class SenderStateMachine(Half):
    """The state of one sender, and the only code that changes it."""

    __slots__ = ("state",)

    def __init__(self, context: Context, channel: int, owner: Owner) -> None:
        super().__init__(context, channel, owner)
        self.state = State.OPEN

    def is_open(self) -> bool:
        """Return whether nothing has begun to end this half."""
        return self.state is State.OPEN

    def is_over(self) -> bool:
        """Return whether this half has ended on the wire."""
        return self.state is State.CLOSED or self.state is State.GONE

    def _move(self, event: Input) -> None:
        new = TRANSITIONS.get((self.state, event))
        if new is None:
            raise ChannelClosed(
                f"AQ-SEND-1: {describe(self.channel)} is {self.state.value}: no {event.value}",
                channel=self.channel,
            )
        self.state = new

    def _changes(self, event: Input) -> bool:
        """Apply an input; return whether the state changed."""
        was = self.state
        self._move(event)
        return self.state is not was

    def _check_open(self) -> None:
        """Raise the reason why nothing can be sent, if there is one."""
        if self._end is End.RECEIVER_CLOSED:
            raise ReceiverClosed(
                f"the receiver of {describe(self.channel)} was closed", channel=self.channel
            )
        if (self.state, Input.SEND) not in TRANSITIONS:
            self._move(Input.SEND)
