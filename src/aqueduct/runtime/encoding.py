"""Local channels that encode and decode their messages, as if they crossed a network.

A test over such a channel finds values that are not of the declared type.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from aqueduct.codec import ChannelHalf, CodecClass, codec_for
from aqueduct.codec.registry import codec_of_peer
from aqueduct.errors import AqueductError, DecodeError, EncodeError
from aqueduct.runtime.call_headers import INVALID_REQUEST, error_header
from aqueduct.runtime.ports import HALF_TWICE, Parcel, end_half
from aqueduct.runtime.unrolled import Unrolled
from aqueduct.wire.primitives import HeaderPairs

if TYPE_CHECKING:
    from aqueduct.runtime.local_channel import LocalChannel

Present = Callable[[ChannelHalf, type[ChannelHalf] | None], ChannelHalf]
"""Returns the application's handle of a half: the half itself, or its blocking twin."""


class LocalHalf(Protocol):
    """A half of a local channel, which a message can carry within its process."""

    _sends: bool
    _origin: Any
    _port: Any
    _headers: HeaderPairs

    def _prepare_to_move(self) -> object:
        """Raise if the half cannot be sent."""

    def _move_here(self) -> Any:
        """Return the handle that the receiver of the message gets; this one is moved."""


class Encoding:
    """The types of the two halves of a local channel; a program may declare different ones."""

    __slots__ = ("_present", "_received", "_sent")

    def __init__(self, kind: Any, codec: CodecClass | None, present: Present) -> None:
        self._sent: tuple[Any, CodecClass | None] = (kind, codec)
        self._received = self._sent
        self._present = present

    def present_as(self, present: Present) -> None:
        """Set the function that makes the application's handles of received halves."""
        self._present = present

    def declare(self, *, sends: bool, kind: Any, headers: HeaderPairs) -> None:
        """Set the type of one half: that of the message in which it was received."""
        if sends:
            self._sent = (kind, codec_of_peer(headers))
        else:
            self._received = (kind, codec_of_peer(headers))

    def pass_through(self, parcel: Parcel) -> None:
        """Replace the value of a message by what a peer would decode, or by its error.

        Raises `EncodeError` for a value that cannot be sent. The halves in it are moved to new
        handles, and their channels encode from now on.
        """
        payload, found = codec_for(*self._sent).encode(parcel.value)
        halves: list[Any] = [*found, *(half._to_attach() for half in parcel.attach)]
        for half in halves:
            half._prepare_to_move()
        if len({half._origin for half in halves}) < len(halves):
            raise EncodeError(HALF_TWICE)
        passage = _Passage(self._present, [half._move_here() for half in halves])
        codec = codec_for(*self._received)
        if codec.is_identity:
            parcel.value = payload
            parcel.attach = tuple(passage.claim(at, None, bytes) for at in range(len(halves)))
            passage.begin()
            return
        try:
            parcel.value = codec.decode(payload, passage.claim)
        except DecodeError as error:
            parcel.error = error
            error.was_answered = passage.answer(error)
            passage.claimed.clear()
        parcel.attach = ()
        passage.end_unclaimed()
        passage.begin()


class _Passage:
    """The halves of one message on their way to its receiver."""

    def __init__(self, present: Present, halves: list[Any]) -> None:
        self._present = present
        self._halves = halves
        self.claimed: dict[int, ChannelHalf] = {}
        self._kinds: dict[int, Any] = {}

    def claim(self, index: int, half: type[ChannelHalf] | None, kind: Any) -> ChannelHalf:
        """Return the half with an index; see `aqueduct.codec.Claim`."""
        if not 0 <= index < len(self._halves):
            raise ValueError(f"there is no attachment {index}")
        if index in self.claimed:
            raise ValueError("one attachment cannot be two channels")
        moved = self._halves[index]
        if half is not None and half._sends is not moved._sends:
            raise ValueError(f"the attachment is no {half.__name__}, but the other half")
        handle = self.claimed[index] = self._present(moved, half)
        self._kinds[index] = kind
        return handle

    def begin(self) -> None:
        """Make the channels of claimed halves encode. Must not run while a codec decodes."""
        for index in self.claimed:
            _begin(self._halves[index], self._kinds[index], self._present)

    def end_unclaimed(self) -> None:
        """End the halves that the message type does not declare (AQ-CLOSE-4)."""
        for index, half in enumerate(self._halves):
            if index not in self.claimed:
                end_half(half)

    def answer(self, error: DecodeError) -> bool:
        """Tell the caller why its request is malformed, if it has a reply (AQ-CALL-4).

        Return whether the caller is notified: by the error, or by the end of its own senders if the
        request carries receivers only.
        """
        replies = [half for half in self._halves if half._sends]
        if not replies:
            return bool(self._halves)
        reply = next((half for half in replies if half._port.oneshot), replies[0])
        text = str(error) if error.__cause__ is None else "the request could not be read"
        try:
            reply._port.send_error(error_header(INVALID_REQUEST, text))
            reply._port.finish()
        except AqueductError:
            reply._port.cancel()
        return True


def _begin(half: LocalHalf, kind: Any, present: Present) -> None:
    """Make the channel of a received half encode its messages, including queued ones."""
    channel: LocalChannel = half._port.channel
    encodes = channel.encoding is not None
    if channel.encoding is None:
        origin = half._origin
        channel.encoding = Encoding(origin.kind, origin.codec, present)
    channel.encoding.declare(sends=half._sends, kind=kind, headers=half._headers)
    if not encodes and not half._sends:
        _waiting.channels.add(channel)


def _pass_queued(channel: LocalChannel) -> None:
    """Encode and decode what was queued before the receiver was sent in a message."""
    assert channel.encoding is not None
    for parcel in channel.queue:
        if parcel.failure() is not None:
            continue  # an error has no value to encode
        try:
            channel.encoding.pass_through(parcel)
        except AqueductError as error:
            channel.refuse(error)
            return


class _WaitingChannels(threading.local):
    """Channels of this thread whose queued messages may carry more such channels."""

    def __init__(self) -> None:
        self.channels: Unrolled[LocalChannel] = Unrolled(_pass_queued)


_waiting = _WaitingChannels()
