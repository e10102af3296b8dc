"""Typed payloads: Python values as msgpack, with the channels in them as attachments.

`bytes` go through untouched. Everything else is what msgspec can encode; a channel half inside a
value becomes the index of an attachment, and the type says what to make of it on the other side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

import msgspec

from aqueduct.errors import DecodeError, EncodeError

T = TypeVar("T")

EXPECTED = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises; anything else comes from code of the application's types."""


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
        except BaseException as error:
            self._found = []  # not for the next message
            if not isinstance(error, Exception):
                raise
            raise EncodeError(f"cannot encode {type(value).__name__}: {error}") from cause(error)
        if found:
            self._found = []
        return payload, found

    def decode(self, payload: bytes, claim: Claim) -> T:
        """The value of a payload; ``claim`` hands out the halves that came with it."""
        self._claim = claim
        try:
            decoded: T = self._decoder.decode(payload)
        except Exception as error:  # noqa: BLE001 -- whatever a type's own code raises
            raise self._not_decoded(error) from cause(error)
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
        except Exception as error:  # noqa: BLE001 -- whatever a type's own code raises
            failed = self._not_decoded(error)
            failed.__cause__ = cause(error)
            return values, failed
        finally:
            self._claim = None
        return values, None

    def _not_decoded(self, error: Exception) -> DecodeError:
        """What is wrong with one message; those behind it are none the worse for it."""
        reason = repr(error) if cause(error) else str(error)
        return DecodeError(f"not a {name_of(self.type)}: {reason}")

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


def cause(error: Exception) -> Exception | None:
    """What people need to see to find their own mistake; msgspec's words are in ours."""
    return None if isinstance(error, EXPECTED) else error


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
        hash(kind)
    except TypeError:
        return Codec(kind)  # such as Annotated with a dict; an instance of Hashable all the same
    return _codecs.get(kind)


def name_of(kind: Any) -> str:
    """A type's name, as people write it."""
    return kind.__name__ if isinstance(kind, type) else str(kind)
