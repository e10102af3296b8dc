"""JSON payloads, for peers without MessagePack, and for messages that people read."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import msgspec

from aqueduct.codec.structured import StructuredCodec

T = TypeVar("T")


class JsonCodec(StructuredCodec[T]):
    """Encodes values of one type as JSON; `bytes` fields become base64 strings."""

    __slots__ = ()

    content_type: ClassVar[str] = "application/json"

    def __init__(self, kind: Any) -> None:
        super().__init__(kind, msgspec.json.Encoder, msgspec.json.Decoder)
