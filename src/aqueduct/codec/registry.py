"""The codecs that a process knows by their content types, and the choice of one for a channel."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from aqueduct.codec.base import ChannelHalf, Claim, Codec, CodecClass
from aqueduct.codec.json import JsonCodec
from aqueduct.codec.messagepack import MessagePackCodec, codec_for
from aqueduct.codec.raw import RawCodec
from aqueduct.errors import DecodeError, EncodeError

CONTENT_TYPE = b"content-type"
"""The header of a channel or connection that names the codec of its messages (AQ-TYPE-4)."""
Pairs = tuple[tuple[bytes, bytes], ...]

_known: dict[str, CodecClass] = {
    MessagePackCodec.content_type: MessagePackCodec,
    JsonCodec.content_type: JsonCodec,
}


def register(codec: CodecClass) -> None:
    """Make a codec known, so that channels of peers that name its content type use it.

    Raises `TypeError` if it is no codec class.
    """
    _check_class(codec)
    _known[_normalized(codec.content_type)] = codec


def choose(kind: Any, codec: CodecClass | None, headers: Pairs) -> tuple[CodecClass | None, Pairs]:
    """Return the codec of a channel made here, and its headers, which name the codec.

    ``headers`` may name the codec instead of ``codec``. Raises `TypeError` if the codec is none, is
    not known, cannot encode the type, or is another than the headers name.
    """
    name = named(headers)
    if codec is None and (kind is bytes or name is None):
        return None, headers
    if codec is None:
        codec = _known.get(name or "")
        if codec is None:
            raise TypeError(f"no codec for content type {name!r} is known; {_ADVICE}")
    _check_class(codec)
    is_raw = isinstance(codec, type) and issubclass(codec, RawCodec)
    if is_raw is not (kind is bytes):
        raise TypeError(
            "a channel of bytes has no codec but RawCodec, and RawCodec is for bytes only; "
            "give the channel a type: channel(SomeType, codec=JsonCodec)"
        )
    if kind is bytes:
        return None, headers
    codec_for(kind, codec)
    if name is None:
        if codec is not MessagePackCodec:
            headers = (*headers, (CONTENT_TYPE, codec.content_type.encode()))
    elif name != _normalized(codec.content_type):
        raise TypeError(f"the header content-type is {name!r}, but the codec writes another format")
    return codec, headers


def named(headers: Pairs) -> str | None:
    """Return the content type in headers, in lower case and without parameters; None if absent."""
    for name, value in headers:
        if name == CONTENT_TYPE:
            return _normalized(value.decode("ascii", "replace"))
    return None


def codec_of_peer(headers: Pairs) -> CodecClass | None:
    """Return the codec that the peer's headers name; None for the default (AQ-TYPE-4).

    A codec that is not known raises with each message (AQ-TYPE-5).
    """
    name = named(headers)
    if name is None:
        return None
    return _known.get(name, UnknownCodec)


def reason_to_refuse(headers: Pairs, codec: CodecClass | None) -> str:
    """Return why a server cannot read what a client with these headers sends; "" if it can.

    ``codec`` is the one codec that the server accepts, if it was told any (AQ-TYPE-6).
    """
    name = named(headers) or MessagePackCodec.content_type
    if codec is not None:
        wanted = _normalized(codec.content_type)
        return "" if name == wanted else f"this server reads {wanted}, and the client sends {name}"
    return "" if name in _known else f"this server cannot read {name}"


class UnknownCodec:
    """Stands for a codec that this process does not know: every message is an error.

    One class serves all content types, so that a peer cannot fill the codecs of a thread.
    """

    content_type: ClassVar[str] = ""
    is_identity: ClassVar[bool] = False

    def __init__(self, kind: Any) -> None:
        """Take the type of messages, as codecs do."""

    def encode(self, value: object) -> tuple[bytes, list[ChannelHalf]]:
        """Raise `EncodeError`."""
        raise EncodeError(_UNKNOWN)

    def decode(self, payload: bytes, claim: Claim) -> Any:
        """Raise `DecodeError`."""
        raise DecodeError(_UNKNOWN)

    def decode_many(self, payloads: list[bytes]) -> tuple[list[Any], DecodeError | None]:
        """Return the error, and no values."""
        return [], DecodeError(_UNKNOWN)


_ADVICE = "make its codec known with aqueduct.codec.register(TheCodec)"
_UNKNOWN = f"the header content-type of this channel names an unknown codec; {_ADVICE}"


def for_reply(codec: Codec[Any]) -> CodecClass | None:
    """Return the codec for the reply to a request that was sent with this one."""
    if codec.is_identity or isinstance(codec, MessagePackCodec | UnknownCodec):
        return None
    return cast("CodecClass", type(codec))


def _check_class(codec: Any) -> None:
    if not isinstance(codec, type) or not isinstance(getattr(codec, "content_type", None), str):
        raise TypeError(f"codec is a codec class such as aqueduct.codec.JsonCodec, not {codec!r}")


def _normalized(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
