"""Typed payloads: Python values as msgpack, with the channels in them as attachments.

`bytes` go through untouched. Everything else is what msgspec can encode; a channel half inside a
value becomes the index of an attachment, and the type says what to make of it on the other side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

import msgspec

from aqueduct.errors import DecodeError, EncodeError

T = TypeVar("T")


class ChannelHalf:
    """What a sender and a receiver have in common for a codec: they travel as attachments."""

    __slots__ = ()

    sends: ClassVar[bool]

    def to_attach(self) -> ChannelHalf:
        """The half that travels: this one, or the one that it wraps."""
        return self


Claim = Callable[[int, type[ChannelHalf], Any], ChannelHalf]
"""Makes the half with an attachment's index, given its kind and the type of its messages."""


class Codec(Generic[T]):
    """Encodes and decodes messages of one type; not for use by two threads at once."""

    __slots__ = ("_claim", "_decoder", "_encoder", "_found", "type")

    def __init__(self, kind: Any) -> None:
        self.type = kind
        self._found: list[ChannelHalf] = []
        self._claim: Claim | None = None
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_unknown)
        try:
            self._decoder = msgspec.msgpack.Decoder(kind, dec_hook=self._decode_unknown)
        except TypeError as error:
            raise TypeError(f"{kind!r} cannot be the type of a channel: {error}") from None

    def encode(self, value: T) -> tuple[bytes, list[ChannelHalf]]:
        """The payload of a value, and the halves in it in the order of their attachments."""
        found = self._found
        try:
            payload = self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            self._found = []
            raise EncodeError(f"cannot encode {type(value).__name__}: {error}") from None
        if found:
            self._found = []
        return payload, found

    def decode(self, payload: bytes, claim: Claim) -> T:
        """The value of a payload; ``claim`` hands out the halves that came with it."""
        self._claim = claim
        try:
            decoded: T = self._decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise DecodeError(f"not a {name_of(self.type)}: {error}") from None
        finally:
            self._claim = None
        return decoded

    def decode_many(self, payloads: list[bytes]) -> tuple[list[T], DecodeError | None]:
        """The values of messages without channels, up to the first that has none, and why."""
        values: list[T] = []
        decode = self._decoder.decode
        self._claim = no_channels
        try:
            for payload in payloads:
                values.append(decode(payload))  # noqa: PERF401 -- those before the wrong one stay
        except (msgspec.DecodeError, RecursionError) as error:
            return values, DecodeError(f"not a {name_of(self.type)}: {error}")
        finally:
            self._claim = None
        return values, None

    def _encode_unknown(self, value: Any) -> Any:
        if isinstance(value, ChannelHalf):
            self._found.append(value.to_attach())
            return len(self._found) - 1
        raise NotImplementedError(f"{type(value).__name__} is not supported by msgspec")

    def _decode_unknown(self, kind: Any, value: Any) -> Any:
        origin = get_origin(kind) or kind
        if isinstance(origin, type) and issubclass(origin, ChannelHalf):
            assert self._claim is not None
            if type(value) is not int:
                raise ValueError("a channel is written as the index of an attachment")
            arguments = get_args(kind)
            return self._claim(value, origin, arguments[0] if arguments else bytes)
        raise NotImplementedError(f"{name_of(kind)} is not supported by msgspec")


def no_channels(index: int, half: type[ChannelHalf], kind: Any) -> ChannelHalf:
    """The claim of a message that came without attachments."""
    raise ValueError(f"attachment {index} was not sent")


class _Codecs(threading.local):
    """The codecs of one thread: making one costs as much as hundreds of messages."""

    def __init__(self) -> None:
        self.get: Callable[[Any], Codec[Any]] = lru_cache(maxsize=256)(Codec)


_codecs = _Codecs()


def codec_for(kind: Any) -> Codec[Any] | None:
    """A codec for a type, to be used by this thread; None for bytes, which need none."""
    if kind is bytes:
        return None
    try:
        return _codecs.get(kind)
    except TypeError:
        if isinstance(kind, Hashable):
            raise
        return Codec(kind)


def name_of(kind: Any) -> str:
    """A type's name, as people write it."""
    return kind.__name__ if isinstance(kind, type) else str(kind)
