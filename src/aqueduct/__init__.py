"""Message channels for Python that cross tasks, processes and hosts.

Send one half of a channel inside a message on another channel, and it becomes a network channel.
"""

from aqueduct import blocking, ipc
from aqueduct.api.calls import Request
from aqueduct.api.channels import Channel, channel, oneshot
from aqueduct.api.client import ClientConnection, connect
from aqueduct.api.connection import Connection
from aqueduct.api.handles import Receiver, Sender
from aqueduct.api.server import Accept, Refuse, Server, ServerConnection, serve
from aqueduct.errors import (
    AqueductError,
    BindError,
    CallError,
    CallTimeout,
    ChannelCancelled,
    ChannelClosed,
    ChannelError,
    ChannelLostInTransit,
    ChannelMoved,
    CloseCode,
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    DecodeError,
    DeliveryError,
    EncodeError,
    EndOfChannel,
    EndpointClosed,
    ForkedConnectionError,
    GoingAway,
    HandshakeFailed,
    HostUnreachable,
    LocalProtocolError,
    MessageError,
    MessageRefused,
    MessageTooLarge,
    PeerRestarted,
    PeerUnreachable,
    ProtocolError,
    ReceiverClosed,
    Refused,
    RemoteProtocolError,
    SendTimeout,
    SettingError,
    TLSError,
    TraceError,
    TransferAborted,
    Unauthenticated,
    VersionMismatch,
    WouldBlock,
    WrongType,
)
from aqueduct.protocol.config import Delivery, Limits
from aqueduct.protocol.connection import Mode
from aqueduct.runtime.headers import Headers
from aqueduct.runtime.ports import Message, Outcome, Receipt
from aqueduct.security import ServerTLS, Trust, dev_tls, dev_trust, pin, tls, trust
from aqueduct.transport.settings import QuicSettings

__version__ = "0.1.0"

DELIVERED = Outcome.DELIVERED
LOST = Outcome.LOST

__all__ = [
    "DELIVERED",
    "LOST",
    "Accept",
    "AqueductError",
    "BindError",
    "CallError",
    "CallTimeout",
    "Channel",
    "ChannelCancelled",
    "ChannelClosed",
    "ChannelError",
    "ChannelLostInTransit",
    "ChannelMoved",
    "ClientConnection",
    "CloseCode",
    "ConnectError",
    "ConnectTimeout",
    "Connection",
    "ConnectionLost",
    "DecodeError",
    "Delivery",
    "DeliveryError",
    "EncodeError",
    "EndOfChannel",
    "EndpointClosed",
    "ForkedConnectionError",
    "GoingAway",
    "HandshakeFailed",
    "Headers",
    "HostUnreachable",
    "Limits",
    "LocalProtocolError",
    "Message",
    "MessageError",
    "MessageRefused",
    "MessageTooLarge",
    "Mode",
    "Outcome",
    "PeerRestarted",
    "PeerUnreachable",
    "ProtocolError",
    "QuicSettings",
    "Receipt",
    "Receiver",
    "ReceiverClosed",
    "Refuse",
    "Refused",
    "RemoteProtocolError",
    "Request",
    "SendTimeout",
    "Sender",
    "Server",
    "ServerConnection",
    "ServerTLS",
    "SettingError",
    "TLSError",
    "TraceError",
    "TransferAborted",
    "Trust",
    "Unauthenticated",
    "VersionMismatch",
    "WouldBlock",
    "WrongType",
    "__version__",
    "blocking",
    "channel",
    "connect",
    "dev_tls",
    "dev_trust",
    "ipc",
    "oneshot",
    "pin",
    "serve",
    "tls",
    "trust",
]
