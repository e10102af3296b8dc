"""What both halves of a channel have in common: the handle on a port, and its way to the peer."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self, cast

from aqueduct.codec import ChannelHalf, CodecClass
from aqueduct.errors import ChannelClosed, ChannelMoved, EncodeError
from aqueduct.protocol.connection import Attach, Give, Mode
from aqueduct.protocol.modes import visible_headers
from aqueduct.runtime.headers import Headers
from aqueduct.runtime.local_channel import LocalReceivePort, LocalSendPort
from aqueduct.runtime.ports import HALF_TWICE, MOVED, NO_REPLY, UNFILLED, abandon_on_its_loop
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.wire.chanid import describe
from aqueduct.wire.primitives import HeaderPairs

if TYPE_CHECKING:
    from aqueduct.api.handles import Receiver, Sender


class Origin:
    """What both halves of a channel made in this process share."""

    __slots__ = (
        "channel",
        "codec",
        "headers",
        "kind",
        "mode",
        "receiver",
        "sender",
        "was_received",
    )

    def __init__(self, kind: Any, headers: HeaderPairs, codec: CodecClass | None) -> None:
        self.kind = kind
        self.codec = codec
        self.mode: Mode | None = None
        """The mode of the channel when one of the halves was sent away."""
        self.headers = headers
        self.channel: int | None = None
        """The id of the channel, once one of the halves was sent away."""
        self.was_received = False
        """Whether this is that of a half that was received in an encoded message."""
        self.sender: weakref.ref[Sender[Any]] | None = None
        self.receiver: weakref.ref[Receiver[Any]] | None = None


class Twinned(Protocol):
    """What the blocking twins of one half share; twins may come and go while the half stays."""

    def abandon(self, half: Handle) -> None:
        """End a half that was garbage collected while open, on the loop of twins, and warn."""


class Handle(ChannelHalf):
    """Base class of `Sender` and `Receiver`: a handle on a port that `_move` replaces."""

    __slots__ = ("__weakref__", "_headers", "_origin", "_port", "_twinned")

    _ended_by: ClassVar[str]
    """The methods that end it, for the warning about an unclosed half."""
    _give: ClassVar[Give]
    _port: Any
    _origin: Origin | None
    _headers: HeaderPairs
    _twinned: Twinned
    """Set once the half has a blocking twin."""

    def __init__(self) -> None:
        name = type(self).__name__
        raise TypeError(f"a {name} is made by channel() or oneshot(), or received in a message")

    @classmethod
    def _from_port(cls, port: Any, headers: HeaderPairs, origin: Origin | None = None) -> Self:
        """Return a handle on a port."""
        handle = cls.__new__(cls)
        handle._port = port
        handle._headers = headers
        handle._origin = origin
        return handle

    @property
    def headers(self) -> Headers:
        """The headers that the channel was made with."""
        return Headers(self._headers)

    def statistics(self) -> dict[str, int]:
        """Return the counters of this half: ``sent`` or ``received``, ``queued``, and others."""
        return self._port.statistics()  # type: ignore[no-any-return]

    def _prepare_to_move(self) -> Attach:
        """Return what the core needs to attach this half; raise if it cannot be sent."""
        origin = self._origin
        port = self._port
        if port is MOVED:
            raise ChannelMoved("this half was sent away already; a half can be sent once")
        if port is UNFILLED:
            raise EncodeError(NO_REPLY)
        is_local = isinstance(port, LocalSendPort | LocalReceivePort)
        if origin is None or origin.was_received or not is_local:
            raise EncodeError(
                "a networked half cannot be sent on; make a new channel and copy the messages"
            )
        if port.is_over():
            raise ChannelClosed(
                "this half was finished, cancelled or closed; send one that is open"
            )
        local = port.channel
        return Attach(self._give, port.oneshot, origin.headers, local.mode, local.priority)

    def _move_here(self) -> Self:
        """Return the handle that the receiver of an encoded message gets; this one is moved."""
        port, self._port = self._port, MOVED
        before = self._origin
        assert before is not None
        origin = Origin(before.kind, before.headers, before.codec)
        origin.was_received = True
        handle = self._from_port(port, visible_headers(self._headers), origin)
        if self._sends:
            before.sender = weakref.ref(cast("Sender[Any]", handle))
        else:
            before.receiver = weakref.ref(cast("Receiver[Any]", handle))
        return handle

    if not TYPE_CHECKING:  # type checkers report these uses by themselves

        def __enter__(self) -> NoReturn:
            raise TypeError(f"write `async with`; {self._in_threads()}")

        def __exit__(self, *_: object) -> None:
            """Exist, so that ``with`` calls `__enter__`, which raises."""

        def _in_threads(self) -> str:
            name = type(self).__name__
            return f"in a thread, use aqueduct.blocking.{name}(half), half being this one"

    def __repr__(self) -> str:
        port = getattr(self, "_port", None)
        if port is None:
            return object.__repr__(self)
        channel, mode, state = port.describe()
        origin = self._origin
        if origin is not None and port is MOVED and origin.channel is not None:
            channel, mode = describe(origin.channel), origin.mode
        name = "unknown" if mode is None else mode.value
        return f"<{type(self).__name__} channel={channel} mode={name} {state}>"

    def __del__(self) -> None:
        port = getattr(self, "_port", None)
        if port is not None and port.is_open():
            twinned: Twinned | None = getattr(self, "_twinned", None)
            if twinned is None:
                _abandon(self, port)
            else:
                twinned.abandon(self)


def check_attach(sender: Handle, attach: Sequence[ChannelHalf]) -> tuple[ChannelHalf, ...]:
    """Return the halves to attach to a message; raise if this channel cannot carry them."""
    port, origin = sender._port, sender._origin
    if isinstance(port, NetworkSendPort):
        is_raw = port.codec.is_identity
    else:
        is_raw = port is MOVED or (origin is not None and origin.kind is bytes)
    if not is_raw:
        raise TypeError(
            "attach is for channels of bytes; a typed message has its halves in its fields"
        )
    if isinstance(attach, ChannelHalf):
        raise TypeError(f"attach takes a list of senders and receivers, not {attach!r}")
    halves = tuple(attach)
    origins = []
    for half in halves:
        if not isinstance(half, ChannelHalf):
            raise TypeError(f"attach takes senders and receivers, not {half!r}")
        inner = half._to_attach()
        assert isinstance(inner, Handle)
        if inner._port is MOVED:
            raise ChannelMoved("this half was sent away already; a half can be sent once")
        if inner._origin is not None:
            origins.append(inner._origin)
    if len(set(origins)) < len(origins):
        raise EncodeError(HALF_TWICE)
    return halves


def _abandon(half: Handle, port: Any) -> None:
    """End a half that was garbage collected while open, on its loop, and warn."""
    text = f"{half!r} was not closed; use `async with`, or call {half._ended_by}"
    abandon_on_its_loop(port)
    warnings.warn(text, ResourceWarning, stacklevel=3, source=half)
