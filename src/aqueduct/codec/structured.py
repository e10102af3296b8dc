"""What codecs built on msgspec share: any msgspec type, with channel halves as attachments."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

import msgspec

from aqueduct.codec.base import ChannelHalf, Claim, name_of, no_channels
from aqueduct.codec.checks import check_for
from aqueduct.errors import DecodeError, EncodeError

T = TypeVar("T")

EXPECTED = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises; anything else comes from code of the application's types."""


class StructuredCodec(Generic[T]):
    """Encodes values of one type with msgspec; a half becomes an attachment's index (AQ-TYPE-2).

    How msgspec encodes types is part of the specification (AQ-TYPE-7, AQ-TYPE-8).
    A subclass passes the encoder and decoder of its format. Raises `TypeError` if msgspec does not
    support the type.
    """

    __slots__ = ("_check", "_claim", "_decode", "_encode", "_found", "_known", "kind")

    content_type: ClassVar[str]
    is_identity: ClassVar[bool] = False

    def __init__(
        self,
        kind: Any,
        encoder: Callable[..., msgspec.msgpack.Encoder | msgspec.json.Encoder],
        decoder: Callable[..., msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any]],
    ) -> None:
        self.kind = kind
        self._found: list[ChannelHalf] = []
        self._claim: Claim | None = None
        check = check_for(kind)
        self._check = check.check
        self._known = check.known
        self._encode = encoder(enc_hook=self._encode_unknown).encode
        try:
            self._decode = decoder(kind, dec_hook=self._decode_unknown).decode
        except TypeError as error:
            raise TypeError(f"{kind!r} cannot be the type of a channel: {error}") from None

    def encode(self, value: T) -> tuple[bytes, list[ChannelHalf]]:
        """Return the payload of a value, and its channel halves; see `Codec.encode`."""
        if type(value) not in self._known:
            self._check(value)
        found = self._found
        try:
            payload = self._encode(value)
        except BaseException as error:
            self._found = []  # the next message must not attach the halves of this one
            if not isinstance(error, Exception):
                raise
            raise EncodeError(f"cannot encode {type(value).__name__}: {error}") from cause(error)
        if found:
            self._found = []
        return payload, found

    def decode(self, payload: bytes, claim: Claim) -> T:
        """Return the value of a payload; see `Codec.decode`."""
        self._claim = claim
        try:
            decoded: T = self._decode(payload)
        except Exception as error:  # noqa: BLE001 -- __post_init__ of a type may raise anything
            raise self._decode_error(error) from cause(error)
        finally:
            self._claim = None
        return decoded

    def decode_many(self, payloads: list[bytes]) -> tuple[list[T], DecodeError | None]:
        """Return the values of messages without attachments; see `Codec.decode_many`."""
        values: list[T] = []
        decode = self._decode
        self._claim = no_channels
        try:
            for payload in payloads:
                values.append(decode(payload))  # noqa: PERF401 -- keep those before a wrong one
        except Exception as error:  # noqa: BLE001 -- __post_init__ of a type may raise anything
            failed = self._decode_error(error)
            failed.__cause__ = cause(error)
            return values, failed
        finally:
            self._claim = None
        return values, None

    def _decode_error(self, error: Exception) -> DecodeError:
        reason = repr(error) if cause(error) else str(error)
        return DecodeError(f"not of type {name_of(self.kind)}: {reason}")

    def _encode_unknown(self, value: Any) -> Any:
        if isinstance(value, ChannelHalf):
            self._found.append(value._to_attach())
            return len(self._found) - 1
        raise NotImplementedError(f"{type(value).__name__} is not supported by msgspec")

    def _decode_unknown(self, kind: Any, value: Any) -> Any:
        half = _half_of(kind)
        if half is None:
            raise NotImplementedError(f"{name_of(kind)} is not supported by msgspec")
        assert self._claim is not None
        if type(value) is not int:
            raise ValueError("a channel is written as the index of an attachment")
        return self._claim(value, *half)


@lru_cache(maxsize=1024)
def _half_of(kind: Any) -> tuple[type[ChannelHalf], Any] | None:
    """Return the class of a channel half and the type of its messages; None for other types."""
    origin = get_origin(kind) or kind
    if not isinstance(origin, type) or not issubclass(origin, ChannelHalf):
        return None
    arguments = get_args(kind)
    return origin, arguments[0] if arguments else bytes


def cause(error: Exception) -> Exception | None:
    """Return an error of the application's own code; the text of msgspec's errors is in ours."""
    return None if isinstance(error, EXPECTED) else error
