"""Every error that Aqueduct raises, and the codes that end connections and streams on the wire.

All errors derive from `AqueductError`. A package may define its own; the tree names the module of
each one that is not defined here::

    AqueductError (.message, .hint)
     +- ChannelError (.channel, .reason, .payload of a send)
     |   +- ChannelClosed           this side closed or finished the channel
     |   +- ReceiverClosed          the peer stopped receiving
     |   +- ChannelCancelled        the peer cancelled its sender; not asyncio's CancelledError
     |   +- ChannelLostInTransit    the message that carried this channel was lost (.lineage)
     |   +- ChannelMoved            this half was sent to the peer
     |   +- ConnectionLost          (.code, .reason, .by_peer)
     |       +- ForkedConnectionError   used in a child process after fork
     +- EndOfChannel                the peer finished the channel; only from receiving
     +- WouldBlock                  no credit or queue space at present
     +- MessageError                affects one message only
     |   +- MessageTooLarge
     |   +- EncodeError
     |   |   +- WrongType           the value is not of the channel's type; also a TypeError
     |   +- DecodeError
     |   +- CallError               a request was answered with an error (.code, .text, .by_peer)
     +- CallTimeout                 a request was not answered in time; also a TimeoutError
     +- DeliveryError               a message of aqueduct.ipc (.code, .to, .may_have_arrived)
     |   +- SendTimeout             no acknowledgement in time; also a TimeoutError
     |   +- MessageRefused          the receiver rejected the message
     |   +- TransferAborted         the receiver aborted the transfer
     |   +- PeerRestarted           the receiver's process was replaced
     |   +- PeerUnreachable         the receiver can no longer be asked
     |   +- EndpointClosed          this side was closed
     +- ConnectError
     |   +- TLSError
     |   +- VersionMismatch
     |   +- Refused
     |   +- Unauthenticated
     |   +- GoingAway               the server is about to stop; another one may accept
     |   +- ConnectTimeout
     |   +- HandshakeFailed         the transport gave up during the handshake
     |   +- HostUnreachable         nothing listens there, or no route leads there
     +- BindError (.address)        a server or endpoint cannot listen on its address
     +- Refuse                      raised by accept callbacks (aqueduct.api.server)
     +- ProtocolError
     |   +- LocalProtocolError      the caller broke a rule
     |   +- RemoteProtocolError     the peer broke a rule (.rule, .code)
     +- SettingError (.setting, .allowed)   also a ValueError and a TypeError
     +- TraceError                  a recorded trace cannot be read
     +- Incomplete                  internal: a decoder needs more bytes
     +- IngestError (.code)         aqueduct.ingest
     |   +- RefusedRecords          the server rejects records
     |   |   +- StepConflict        a step was ended with other rows than those stored
     |   +- UnknownTopic
     |   +- TopicReplaced           the topic was recreated, or restored from a copy
     |   +- NotAllowed              the token does not allow it
     |   +- DiskLow                 the server has too little disk space
     |   +- CorruptFile (.path, .position)
     |   +- NothingStored           a storage stored nothing of a group
     |   |   +- UnencodableRecords  because records cannot be encoded
     |   +- OutcomeUnknown          a storage may have stored a group
     |   +- Fenced                  another process has claimed the topic
     |   +- SpillFault              a spill file could not be written (aqueduct.ingest.dedup)
     +- ScopeFault                  internal: why rows are rejected (aqueduct.ingest.dedup)
     |   +- StepFault
     |       +- ExtraRows
     +- SourceError                 aqueduct.spark
     |   +- DataLoss                rows to read were removed
     |       +- TopicIdentityError  also a SinkError
     +- SinkError                   aqueduct.spark
     |   +- WrongOption             also a SourceError and a ValueError
     |   +- Unreachable             also a SourceError
     +- NoJava                      aqueduct.spark; also a RuntimeError
     +- PipelineError               aqueduct.spark.pipeline; also a ValueError
     +- CoreFailed                  aqueduct.testing
     +- StuckTimer                  aqueduct.testing
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

__all__ = [
    "AqueductError",
    "BindError",
    "CallError",
    "CallTimeout",
    "ChannelCancelled",
    "ChannelClosed",
    "ChannelError",
    "ChannelLostInTransit",
    "ChannelMoved",
    "CloseCode",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionLost",
    "DecodeError",
    "DeliveryError",
    "EncodeError",
    "EndOfChannel",
    "EndpointClosed",
    "ForkedConnectionError",
    "GoingAway",
    "HandshakeFailed",
    "HostUnreachable",
    "LocalProtocolError",
    "MessageError",
    "MessageRefused",
    "MessageTooLarge",
    "PeerRestarted",
    "PeerUnreachable",
    "ProtocolError",
    "ReceiverClosed",
    "Refused",
    "RemoteProtocolError",
    "SendTimeout",
    "SettingError",
    "StreamCode",
    "TLSError",
    "TraceError",
    "TransferAborted",
    "Unauthenticated",
    "VersionMismatch",
    "WouldBlock",
    "WrongType",
]


CALL_CODE = re.compile("[a-z0-9-]{1,64}")
"""The form of the code of a `CallError`."""


class CloseCode(IntEnum):
    """Why a connection was closed: the QUIC application error code (AQ-CODE-1)."""

    NO_ERROR = 0x00
    INTERNAL = 0x01
    PROTOCOL_VIOLATION = 0x02
    VERSION_MISMATCH = 0x03
    FLOW_CONTROL = 0x04
    LIMIT_EXCEEDED = 0x05
    REFUSED = 0x06
    UNAUTHENTICATED = 0x07
    GOING_AWAY = 0x08
    IDLE = 0x09
    TRANSPORT = 0x0A


class StreamCode(IntEnum):
    """Why a stream was reset: the QUIC stream error code (AQ-CODE-2)."""

    CANCELLED = 0x10
    FORGOTTEN = 0x11


class AqueductError(Exception):
    """The base class of all errors of Aqueduct.

    ``str()`` gives the message, followed by the hint if there is one.
    """

    hint: str = ""
    """What to do about it, as an imperative without a full stop. A front end that knows its
    users' vocabulary, such as the command line, may show another one instead."""

    @property
    def message(self) -> str:
        """The text without the hint."""
        return super().__str__()

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; {self.hint}" if self.hint else text


class ChannelError(AqueductError):
    """A channel ended in another way than by being finished and drained."""

    def __init__(self, reason: str = "", *, channel: int | None = None) -> None:
        super().__init__(reason)
        self.channel = channel
        self.reason = reason
        self.payload: Any = None
        """The message that could not be sent, if this came from sending."""


class ChannelClosed(ChannelError):
    """This side closed, finished or cancelled the channel and then used it again."""


class ReceiverClosed(ChannelError):
    """The peer stopped receiving."""


class ChannelCancelled(ChannelError):
    """The peer cancelled its sender. Not asyncio's ``CancelledError``."""


class ChannelLostInTransit(ChannelError):
    """The message that carried this channel, or one of its ancestors, was lost."""

    def __init__(
        self, reason: str = "", *, channel: int | None = None, lineage: tuple[int, ...] = ()
    ) -> None:
        super().__init__(reason, channel=channel)
        self.lineage = lineage


class ChannelMoved(ChannelError):
    """This half was sent away in a message; the peer holds it now."""


class ConnectionLost(ChannelError):
    """The connection under the channel ended.

    ``reason`` is what the side that closed it gave; ``str()`` also names that side.
    """

    def __init__(
        self,
        sentence: str = "",
        *,
        channel: int | None = None,
        code: int = CloseCode.NO_ERROR,
        reason: str | None = None,
        by_peer: bool = False,
    ) -> None:
        super().__init__(sentence, channel=channel)
        if reason is not None:
            self.reason = reason
        self.code = code
        self.by_peer = by_peer


class ForkedConnectionError(ConnectionLost):
    """The connection was made before a fork, and belongs to the parent process."""


class EndOfChannel(AqueductError):
    """The channel was finished and everything on it has been received."""


class WouldBlock(AqueductError):
    """Flow control has no credit for the message now; wait for credit, then retry."""


class MessageError(AqueductError):
    """One message could not be sent or received; its channel stays open."""


class MessageTooLarge(MessageError):
    """The message exceeds a limit the peer stated."""


class EncodeError(MessageError):
    """The message could not be encoded."""


class WrongType(EncodeError, TypeError):
    """The value is not of the type of the channel's messages, so it was not sent."""


class DecodeError(MessageError):
    """The payload is not a value of the expected type."""

    was_answered = False
    """Whether the sender of the message learns of it: by an error on the reply sender that the
    message carried, or at least by the end of the channels in it."""


class CallError(MessageError):
    """A request was answered with an error instead of its reply.

    A handler raises it to tell the caller why, with a ``code`` that programs can act on, and the
    caller's `Sender.call` raises it.
    """

    def __init__(self, code: str, text: str = "", *, by_peer: bool = False) -> None:
        """``code`` has up to 64 characters: lower-case ASCII letters, digits and hyphens."""
        if not CALL_CODE.fullmatch(code):
            raise ValueError(
                f"the code of an error has 1 to 64 lower-case letters, digits and hyphens, "
                f"as in not-found; not {code!r}"
            )
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text
        self.by_peer = by_peer
        """Whether it was received, as opposed to made here."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.text), {**self.__dict__}


class CallTimeout(AqueductError, TimeoutError):
    """A request was not answered in time."""


class DeliveryError(AqueductError):
    """The receiver has not taken a message, or may not have taken it."""

    code = 0
    """The code of the protocol (IPC-PDU-6): positive if the receiver sent it, else negative."""

    def __init__(
        self,
        sentence: str = "",
        *,
        to: str = "",
        may_have_arrived: bool = False,
        code: int | None = None,
    ) -> None:
        super().__init__(sentence)
        if code is not None:
            self.code = code
        self.to = to
        """The address it was sent to."""
        self.may_have_arrived = may_have_arrived
        """False if the receiver certainly has not taken it, and never will."""


class SendTimeout(DeliveryError, TimeoutError):
    """The receiver did not acknowledge the message in time."""

    code = -4


class MessageRefused(DeliveryError):
    """The receiver got the message and rejected it."""

    code = 1


class TransferAborted(DeliveryError):
    """The receiver aborted the transfer before the message was complete."""

    code = 4


class PeerRestarted(DeliveryError):
    """The process that the message was sent to was replaced, and may have taken it."""

    code = -6


class PeerUnreachable(DeliveryError):
    """The receiver may have the message, and can no longer be reached; see ``__cause__``."""

    code = -1


class EndpointClosed(DeliveryError):
    """This endpoint was closed."""

    code = -3


class ConnectError(AqueductError):
    """The connection could not be established."""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TLSError(ConnectError):
    """The peer's certificate was not trusted, or TLS failed otherwise."""


class VersionMismatch(ConnectError):
    """The peer speaks another version of the protocol."""


class Refused(ConnectError):
    """The peer's application refused the connection."""


class Unauthenticated(ConnectError):
    """The peer's application did not accept our credentials."""


class GoingAway(ConnectError):
    """The server is about to stop and takes no new connections; another one may."""


class ConnectTimeout(ConnectError):
    """The peer did not answer in time."""


class HandshakeFailed(ConnectError):
    """The transport gave up during the handshake, as it may when packets are lost."""


class HostUnreachable(ConnectError):
    """Nothing listens at the address, or no route leads there; another address may work."""


class BindError(AqueductError):
    """A server or endpoint cannot listen on its address: it is in use, or not of this host."""

    def __init__(self, message: str = "", *, address: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.address = address
        """The address as the caller wrote it."""
        self.hint = hint


class ProtocolError(AqueductError):
    """A violation of the protocol; the subclass says which side committed it."""


class LocalProtocolError(ProtocolError):
    """The caller asked for something the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rule named in ``rule``; the connection closes with ``code``."""

    def __init__(
        self, rule: str, reason: str, code: CloseCode = CloseCode.PROTOCOL_VIOLATION
    ) -> None:
        super().__init__(f"{rule}: {reason}")
        self.rule = rule
        self.reason = reason
        self.code = code


class SettingError(AqueductError, ValueError, TypeError):
    """A setting has a value of the wrong type, or one that is not allowed."""

    def __init__(self, message: str = "", *, setting: str = "", allowed: str = "") -> None:
        super().__init__(message)
        self.setting = setting
        """The name of the setting."""
        self.allowed = allowed
        """The values that are allowed."""


class TraceError(AqueductError):
    """A recorded trace cannot be read."""


class Incomplete(AqueductError):
    """The bytes end before the value does. Decoders handle it; it never reaches an application."""
