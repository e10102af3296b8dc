"""A received message, and the encoding of a message to send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar
from uuid import UUID

from aqueduct.codec import Codec
from aqueduct.errors import EncodeError
from aqueduct.ipc.transports.base import PduTransport

T = TypeVar("T")


class ReceivedMessage(Generic[T]):
    """A message that arrived, with its source address and its id."""

    __slots__ = ("_id", "_remote", "_transport", "payload")

    def __init__(self, payload: T, message_id: bytes, remote: Hashable, transport: PduTransport):
        self.payload = payload
        self._id = message_id
        self._remote = remote
        self._transport = transport

    @property
    def source(self) -> str:
        """The address of its sender, to which a reply can be sent."""
        return self._transport.name(self._remote)

    @property
    def id(self) -> UUID:
        """The unique id that its sender assigned."""
        return UUID(bytes=self._id)

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.payload!r}, source={self.source!r}, id={str(self.id)!r})"


Handler = Callable[[ReceivedMessage[T]], Awaitable[object] | object]


def encode_message(codec: Codec[Any], message: object) -> bytes:
    """Return the payload of a message; raise `EncodeError` if it has none, or holds channels."""
    if codec.is_identity and isinstance(message, bytes):
        return message
    payload, halves = codec.encode(message)
    if halves:
        raise EncodeError("channels cannot travel in messages of aqueduct.ipc")
    return payload
