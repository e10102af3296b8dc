"""ScalableIPC: reliable messages without connections, over UDP on a host and TLS between hosts.

>>> from aqueduct import ipc
>>> endpoint = ipc.Endpoint("udp://127.0.0.1:0")
"""

from aqueduct.ipc import blocking
from aqueduct.ipc.core.events import Statistics
from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.ipc.endpoint import Endpoint
from aqueduct.ipc.message import ReceivedMessage
from aqueduct.ipc.transports.tcp import TcpLimits

__all__ = ["Endpoint", "IpcSettings", "ReceivedMessage", "Statistics", "TcpLimits", "blocking"]
