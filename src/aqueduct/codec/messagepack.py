"""MessagePack, the default codec of channels and endpoints, and the codecs of each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import msgspec

from aqueduct.codec.base import Codec, CodecClass
from aqueduct.codec.raw import RAW
from aqueduct.codec.structured import StructuredCodec

T = TypeVar("T")


class MessagePackCodec(StructuredCodec[T]):
    """Encodes values of one type as MessagePack (AQ-TYPE-1)."""

    __slots__ = ()

    content_type: ClassVar[str] = "application/msgpack"

    def __init__(self, kind: Any) -> None:
        super().__init__(kind, msgspec.msgpack.Encoder, msgspec.msgpack.Decoder)


class _ThreadCodecs(threading.local):
    """The codecs of one thread. To create one costs as much as hundreds of messages."""

    def __init__(self) -> None:
        self.get: Callable[..., Codec[Any]] = lru_cache(maxsize=256)(_make)


def _make(chosen: CodecClass, kind: Any) -> Codec[Any]:
    return chosen(kind)


_codecs = _ThreadCodecs()


def codec_for(kind: Any, chosen: CodecClass | None = None) -> Codec[Any]:
    """Return the codec of a type, for use by the calling thread only.

    ``chosen`` is the format, MessagePack by default; a channel of `bytes` has none. Raises
    `TypeError` if the type cannot be the type of a message.
    """
    if kind is bytes:
        return RAW
    if chosen is None:
        chosen = MessagePackCodec
    try:
        hash(kind)
    except TypeError:
        # Annotated with a dict has no hash, and yet is an instance of Hashable.
        return chosen(kind)
    return _codecs.get(chosen, kind)
