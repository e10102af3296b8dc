"""The `Codec` protocol, and what codecs and channels share: halves that travel as attachments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

from aqueduct.errors import DecodeError

T = TypeVar("T")


class ChannelHalf:
    """Base class of senders and receivers: a codec replaces them by the indexes of attachments."""

    __slots__ = ()

    _sends: ClassVar[bool]
    """True for a sender, False for a receiver."""

    def _to_attach(self) -> ChannelHalf:
        """Return the half that travels: this one, or the asynchronous one that it wraps."""
        return self


Claim = Callable[[int, type[ChannelHalf], Any], ChannelHalf]
"""Returns the half with an attachment's index, given the declared class of the half and the type of
its messages. Raises `ValueError` if the message has no such attachment."""


class Codec(Protocol[T]):
    """Encodes and decodes the messages of one type.

    A codec may keep state during a call, so two threads must not use one at the same time:
    `codec_for` returns a codec of the calling thread.
    """

    content_type: ClassVar[str]
    """The media type of the payloads."""
    is_identity: ClassVar[bool]
    """Whether a payload is the value itself: such messages keep their attachments beside it."""

    def encode(self, value: T) -> tuple[bytes, list[ChannelHalf]]:
        """Return the payload of a value, and its channel halves in the order of their indexes.

        Raises `EncodeError` if the value cannot be encoded, and `WrongType`, which is one, if it is
        not of the type. The halves stay usable then.
        """

    def decode(self, payload: bytes, claim: Claim) -> T:
        """Return the value of a payload; ``claim`` returns the halves that came with it.

        Raises `DecodeError` if the payload is not a value of the type, or if ``claim`` raises.
        """

    def decode_many(self, payloads: list[bytes]) -> tuple[list[T], DecodeError | None]:
        """Return the values of messages without attachments.

        Stops at the first payload that is not a value of the type, and returns the error with the
        values before it.
        """


class CodecClass(Protocol):
    """What makes the codecs of one format: a class that is called with the type of messages."""

    @property
    def content_type(self) -> str:
        """The media type of the payloads, which tells the peer how to decode them."""

    def __call__(self, kind: Any, /) -> Codec[Any]:
        """Return the codec of a type; raise `TypeError` if the format does not support it."""


def no_channels(index: int, half: type[ChannelHalf], kind: Any) -> ChannelHalf:
    """Raise `ValueError`: the `Claim` of a message without attachments."""
    raise ValueError(f"attachment {index} was not sent")


def name_of(kind: Any) -> str:
    """Return the name of a type for an error message."""
    return kind.__name__ if isinstance(kind, type) else str(kind)
