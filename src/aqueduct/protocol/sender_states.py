"""The states of the sending half of a channel.

Theory of operation. A sender is OPEN until its application finishes or cancels it; either is sent
once and is final. It then waits for CLOSE_RECEIVER, which settles every message: those not acked by
then are nacked. After that the channel no longer exists on the wire, but a sender whose channel is
still pending stays CLOSED until its lineage is known, since only then is an acked message known to
be delivered; and a sender whose handle has not reached the application stays CLOSED until it has.

A sender whose handle the application has cannot be lost, so FORGET_CHANNEL says that its receiver
has ended. The sender then sends nothing more, and for a while waits for CLOSE_RECEIVER and the last
acks, which FORGET_CHANNEL may have overtaken: it is FORGOTTEN, or stays FINISHED or CANCELLED.

`TRANSITIONS` is complete, and only this file assigns a sender's state.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from aqueduct.errors import ChannelClosed, ReceiverClosed
from aqueduct.protocol.events import End
from aqueduct.protocol.half import Half
from aqueduct.wire.chanid import describe


class SenderState(Enum):
    """The state of a sender."""

    __hash__ = object.__hash__  # Enum's own is slow, and each transition needs it

    OPEN = "open"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FORGOTTEN = "forgotten"
    CLOSED = "closed"
    GONE = "gone"


class SenderInput(Enum):
    """A command, frame or decision that may change the state of a sender."""

    __hash__ = object.__hash__

    SEND = "send"
    FINISH = "finish"
    CANCEL = "cancel"
    CLOSE_RECEIVER = "CLOSE_RECEIVER"
    FORGET_CHANNEL = "FORGET_CHANNEL"
    SETTLE = "settled"
    DROP = "forgotten or lost"


TRANSITIONS: dict[tuple[SenderState, SenderInput], SenderState] = {
    (SenderState.OPEN, SenderInput.SEND): SenderState.OPEN,
    (SenderState.OPEN, SenderInput.FINISH): SenderState.FINISHED,
    (SenderState.OPEN, SenderInput.CANCEL): SenderState.CANCELLED,
    (SenderState.OPEN, SenderInput.CLOSE_RECEIVER): SenderState.CLOSED,
    (SenderState.OPEN, SenderInput.FORGET_CHANNEL): SenderState.FORGOTTEN,
    (SenderState.OPEN, SenderInput.DROP): SenderState.GONE,
    (SenderState.FINISHED, SenderInput.FINISH): SenderState.FINISHED,
    (SenderState.FINISHED, SenderInput.CANCEL): SenderState.FINISHED,
    (SenderState.FINISHED, SenderInput.CLOSE_RECEIVER): SenderState.CLOSED,
    (SenderState.FINISHED, SenderInput.FORGET_CHANNEL): SenderState.FINISHED,
    (SenderState.FINISHED, SenderInput.DROP): SenderState.GONE,
    (SenderState.CANCELLED, SenderInput.FINISH): SenderState.CANCELLED,
    (SenderState.CANCELLED, SenderInput.CANCEL): SenderState.CANCELLED,
    (SenderState.CANCELLED, SenderInput.CLOSE_RECEIVER): SenderState.CLOSED,
    (SenderState.CANCELLED, SenderInput.FORGET_CHANNEL): SenderState.CANCELLED,
    (SenderState.CANCELLED, SenderInput.DROP): SenderState.GONE,
    (SenderState.FORGOTTEN, SenderInput.FINISH): SenderState.FORGOTTEN,
    (SenderState.FORGOTTEN, SenderInput.CANCEL): SenderState.FORGOTTEN,
    (SenderState.FORGOTTEN, SenderInput.CLOSE_RECEIVER): SenderState.CLOSED,
    (SenderState.FORGOTTEN, SenderInput.FORGET_CHANNEL): SenderState.FORGOTTEN,
    (SenderState.FORGOTTEN, SenderInput.DROP): SenderState.GONE,
    (SenderState.CLOSED, SenderInput.FINISH): SenderState.CLOSED,
    (SenderState.CLOSED, SenderInput.CANCEL): SenderState.CLOSED,
    (SenderState.CLOSED, SenderInput.SETTLE): SenderState.GONE,
    (SenderState.CLOSED, SenderInput.DROP): SenderState.GONE,
}
"""The next state for each state and input. A missing entry is an error of the input's cause."""


# Python finds a module's name ten times faster than an enum's member.
_OPEN: Final = SenderState.OPEN
_CLOSED: Final = SenderState.CLOSED
_GONE: Final = SenderState.GONE


class SenderStateMachine(Half):
    """The state of one sender, and the only code that changes it after OPEN."""

    __slots__ = ("state",)

    state: SenderState

    def is_open(self) -> bool:
        """Return whether nothing has begun to end this half."""
        return self.state is _OPEN

    def is_over(self) -> bool:
        """Return whether this half has ended on the wire."""
        state = self.state
        return state is _CLOSED or state is _GONE

    def _move(self, event: SenderInput) -> None:
        new = TRANSITIONS.get((self.state, event))
        if new is None:
            raise ChannelClosed(
                f"AQ-SEND-1: {describe(self.channel)} is {self.state.value}: no {event.value}",
                channel=self.channel,
            )
        self.state = new

    def _changes(self, event: SenderInput) -> bool:
        """Apply an input; return whether the state changed."""
        was = self.state
        self._move(event)
        return self.state is not was

    def _check_open(self) -> None:
        """Raise the reason why nothing can be sent, if there is one."""
        if self._end is End.RECEIVER_CLOSED or self.state is SenderState.FORGOTTEN:
            raise ReceiverClosed(
                f"the receiver of {describe(self.channel)} was closed", channel=self.channel
            )
        if (self.state, SenderInput.SEND) not in TRANSITIONS:
            self._move(SenderInput.SEND)
