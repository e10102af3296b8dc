"""Payloads that are the application's own bytes: nothing is encoded, copied or checked."""

from __future__ import annotations

from typing import ClassVar

from aqueduct.codec.base import ChannelHalf, Claim, name_of
from aqueduct.errors import DecodeError, WrongType


class RawCodec:
    """Passes `bytes` through; a `bytearray` or `memoryview` is copied. It keeps no state."""

    __slots__ = ()

    content_type: ClassVar[str] = "application/octet-stream"
    is_identity: ClassVar[bool] = True

    def encode(self, value: object) -> tuple[bytes, list[ChannelHalf]]:
        """Return the value itself; raises `WrongType` if it is not bytes."""
        if isinstance(value, bytes):
            return value, []
        if isinstance(value, bytearray | memoryview):
            return bytes(value), []
        raise WrongType(
            f"a channel or endpoint of bytes cannot send {name_of(type(value))}; "
            "give it a type: channel(SomeType), Endpoint(address, SomeType)"
        )

    def decode(self, payload: bytes, claim: Claim) -> bytes:
        """Return the payload itself."""
        return payload

    def decode_many(self, payloads: list[bytes]) -> tuple[list[bytes], DecodeError | None]:
        """Return the payloads themselves."""
        return payloads, None


RAW = RawCodec()
