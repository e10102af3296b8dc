"""Making channels: `channel()` and `oneshot()`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypedDict, TypeVar, Unpack, overload

from aqueduct.api.half import Origin
from aqueduct.api.handles import Receiver, Sender
from aqueduct.codec import CodecClass, codec_for
from aqueduct.codec.checks import check_for
from aqueduct.codec.registry import choose
from aqueduct.protocol.modes import Mode, check_channel_headers
from aqueduct.protocol.priorities import DEFAULT_PRIORITY
from aqueduct.runtime.connection_driver import as_it_is
from aqueduct.runtime.encoding import Encoding
from aqueduct.runtime.headers import HeadersLike, to_pairs
from aqueduct.runtime.local_channel import LocalChannel, LocalReceivePort, LocalSendPort
from aqueduct.wire.primitives import HeaderPairs

if TYPE_CHECKING:
    from typing_extensions import TypeForm  # part of every type checker

T = TypeVar("T")

DEFAULT_CAPACITY = 64
"""Messages that a local channel holds before its sender waits."""


class Channel(NamedTuple, Generic[T]):
    """Both halves of a channel, sender first."""

    sender: Sender[T]
    receiver: Receiver[T]


class OneshotOptions(TypedDict, total=False):
    """Keyword arguments of `oneshot`."""

    mode: Mode
    headers: HeadersLike | None
    codec: CodecClass | None
    priority: int
    encode: bool


class ChannelOptions(OneshotOptions, total=False):
    """Keyword arguments of `channel`."""

    capacity: int


@overload
def channel(**options: Unpack[ChannelOptions]) -> Channel[bytes]: ...
@overload
def channel(kind: type[T], **options: Unpack[ChannelOptions]) -> Channel[T]: ...
@overload
def channel(kind: TypeForm[T], **options: Unpack[ChannelOptions]) -> Channel[T]: ...
@overload
def channel(kind: Any, **options: Unpack[ChannelOptions]) -> Channel[Any]: ...
def channel(
    kind: Any = bytes,
    *,
    mode: Mode = Mode.ORDERED,
    capacity: int = DEFAULT_CAPACITY,
    headers: HeadersLike | None = None,
    codec: CodecClass | None = None,
    priority: int = DEFAULT_PRIORITY,
    encode: bool = False,
) -> Channel[Any]:
    """Make a channel for messages of a type.

    The channel is local until one of its halves is sent in a message. ``mode`` is how its sender
    sends over a network, also if the sender is the half that is sent away; its holder may set
    another `Sender.mode` before the first message. A local channel is always ordered and reliable.
    ``capacity`` is the number of messages that a local channel holds before `Sender.send` waits.
    The peer finds ``headers`` at the half that it receives. ``codec`` is the format of messages
    that cross a network, such as `aqueduct.codec.JsonCodec`; MessagePack by default. The peer
    learns it from the channel's header ``content-type``, which may be given instead. ``priority``
    is that of the sender if it stays here, see `Sender.priority`.

    A local channel passes values on as they are. With ``encode`` it encodes and decodes them as a
    network would, and so do the channels in its messages: in a test, a value that is not of the
    type then fails as it would between two processes.

    Raises `TypeError` if ``kind`` is not a type that messages can have, ``mode`` not a `Mode`, or
    ``codec`` not a codec for the type, `ValueError` if ``priority`` is not from 0 to 7, and
    `LocalProtocolError` for a header whose name begins with ``aqueduct-``.
    """
    local = LocalChannel(capacity, oneshot=False, mode=mode, priority=priority)
    return _make(kind, local, to_pairs(headers), codec, encode=encode)


@overload
def oneshot(**options: Unpack[OneshotOptions]) -> Channel[bytes]: ...
@overload
def oneshot(kind: type[T], **options: Unpack[OneshotOptions]) -> Channel[T]: ...
@overload
def oneshot(kind: TypeForm[T], **options: Unpack[OneshotOptions]) -> Channel[T]: ...
@overload
def oneshot(kind: Any, **options: Unpack[OneshotOptions]) -> Channel[Any]: ...
def oneshot(
    kind: Any = bytes,
    *,
    mode: Mode = Mode.ORDERED,
    headers: HeadersLike | None = None,
    codec: CodecClass | None = None,
    priority: int = DEFAULT_PRIORITY,
    encode: bool = False,
) -> Channel[Any]:
    """Make a channel for one message, such as the reply to a request; see `channel`."""
    local = LocalChannel(1, oneshot=True, mode=mode, priority=priority)
    return _make(kind, local, to_pairs(headers), codec, encode=encode)


def _make(
    kind: Any,
    local: LocalChannel,
    headers: HeaderPairs,
    codec: CodecClass | None,
    *,
    encode: bool,
) -> Channel[Any]:
    if codec is not None or headers:
        check_channel_headers(headers)
        codec, headers = choose(kind, codec, headers)
    codec_for(kind, codec)  # raise here for a type that cannot be one
    local.check = check_for(kind)
    if encode:
        local.encoding = Encoding(kind, codec, as_it_is)
    origin = Origin(kind, headers, codec)
    sender: Sender[Any] = Sender._from_port(LocalSendPort(local), headers, origin)
    receiver: Receiver[Any] = Receiver._from_port(LocalReceivePort(local), headers, origin)
    origin.sender = weakref.ref(sender)
    origin.receiver = weakref.ref(receiver)
    return Channel(sender, receiver)
