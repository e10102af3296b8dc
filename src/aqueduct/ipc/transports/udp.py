"""The transport over UDP between processes of one host: one PDU per datagram (IPC-UDP-1)."""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import os
import socket
import termios
import warnings
from collections.abc import Hashable, Sequence
from math import inf

from aqueduct.errors import BindError, ConnectError
from aqueduct.ipc.address import parse, unparse
from aqueduct.ipc.core.events import Transmit
from aqueduct.ipc.transports.base import PduListener
from aqueduct.transport.address import Address
from aqueduct.transport.udp import Packet, UdpSocket

MAX_PDU = 60_000
"""Bytes. A datagram holds at most 65,507; fewer use socket buffers better (IPC-UDP-4)."""
_BATCHES = 64
"""Reads per turn of the event loop, so that other tasks are not starved."""
_MAX_UNSENT = 16_384
"""PDUs buffered while the socket is full; further ones are dropped."""
_MAX_LOCATED = 4_096
_NAME_AGE = 60.0
"""Seconds for which the address of a host name is cached."""
_DIAGNOSIS_AGE = 1.0
"""Seconds for which a diagnosis is cached, since many messages may fail for one reason."""
_NOTHING = bytes(4)


class UdpTransport:
    """A UDP socket, usually on loopback, that both sends and receives (IPC-UDP-3)."""

    id_trust: float | None = None
    reports_sent = False
    max_pdu = MAX_PDU

    def __init__(self, sock: socket.socket, listener: PduListener) -> None:
        self._socket = UdpSocket(sock)
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._full = False
        self._diagnosis = ""
        self._diagnosed: Hashable = None
        self._diagnosed_at = 0.0
        self._readable_size = bytearray(_NOTHING)
        self._located: dict[str, tuple[Address, float]] = {}
        host, port = sock.getsockname()[:2]
        self.address = unparse("udp", host, port)
        # The peer runs on the same kernel, most likely with a buffer of the same size.
        self.window = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        self._loop.add_reader(sock.fileno(), self._readable)

    async def locate(self, address: str) -> Hashable:
        """Return the IP address and port of an address."""
        found, until = self._located.get(address, (None, 0.0))
        if found is None or self._loop.time() >= until:
            target = parse(address)
            if target.scheme != "udp" or not target.host or not target.port:
                raise ConnectError(
                    f"an endpoint at {self.address} cannot send to {address}; "
                    "it sends to udp://host:port"
                )
            found, fixed = await _resolve(target.host, target.port, self._socket.socket.family)
            if ipaddress.ip_address(found[0]).is_unspecified:
                raise ConnectError(
                    f"{address} stands for all addresses of a host; send to one of them, such as "
                    "127.0.0.1"
                )
            if len(self._located) >= _MAX_LOCATED:
                self._located.clear()
            until = inf if fixed else self._loop.time() + _NAME_AGE
            self._located[address] = found, until
        return found

    def name(self, remote: Hashable) -> str:
        """Return a remote as ``udp://host:port``."""
        assert isinstance(remote, tuple)
        return unparse("udp", remote[0], remote[1])

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Send PDUs; buffer a limited number while the socket is full."""
        packets: list[Packet] = [
            (head + data if data else head, remote)  # type: ignore[misc]  # an Address
            for remote, head, data, _ in transmits
        ]
        if self._full:
            if self._socket.waiting + len(packets) <= _MAX_UNSENT:
                self._socket.send(packets)
            return
        if not self._socket.send(packets):
            self._full = True
            self._loop.add_writer(self._socket.socket.fileno(), self._writable)

    def diagnose(self, remote: Hashable) -> str:
        """Ask the kernel whether a remote's port is open (IPC-UDP-5).

        A separate socket sends an empty datagram and reads the ICMP error. The endpoint's own
        socket would have to be polled for errors all the time, and uvloop stops reading from a
        socket with a pending error.
        """
        assert isinstance(remote, tuple)
        now = self._loop.time()
        if self._diagnosed != remote or now >= self._diagnosed_at + _DIAGNOSIS_AGE:
            self._diagnosed, self._diagnosed_at = remote, now
            self._diagnosis = _probe(self._socket.socket.family, remote)
        return self._diagnosis

    async def close(self) -> None:
        """Close the socket; the kernel sends what it has taken."""
        fileno = self._socket.socket.fileno()
        if fileno >= 0:
            self._loop.remove_reader(fileno)
            self._loop.remove_writer(fileno)
            self._socket.close()

    def _readable(self) -> None:
        for _ in range(_BATCHES):
            batch = self._socket.receive()
            if batch is None:
                return
            data, size, remote = batch
            if len(data) <= size:
                self._listener.handle_pdus((data,), remote)
            else:
                pdus = [data[at : at + size] for at in range(0, len(data), size)]
                self._listener.handle_pdus(pdus, remote)
            # Much cheaper than a read of an empty socket.
            if not self._has_more():
                return

    def _has_more(self) -> bool:
        """Return whether another datagram is queued; an empty one is found in the next turn."""
        fileno = self._socket.socket.fileno()
        if fileno < 0:
            return False
        fcntl.ioctl(fileno, termios.FIONREAD, self._readable_size)
        return self._readable_size != _NOTHING

    def _writable(self) -> None:
        if self._socket.send_waiting():
            self._full = False
            self._loop.remove_writer(self._socket.socket.fileno())


async def open_udp(address: str, listener: PduListener) -> UdpTransport:
    """Bind a socket, by default to loopback; warn about other addresses (IPC-UDP-2)."""
    target = parse(address)
    loop = asyncio.get_running_loop()
    host = target.host or "127.0.0.1"
    try:
        found = await loop.getaddrinfo(host, target.port, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise BindError(
            f"cannot listen at {address}: cannot find {host!r}: {error.strerror}", address=address
        ) from None
    family, kind, protocol, _, where = found[0]
    if not ipaddress.ip_address(str(where[0])).is_loopback:
        warnings.warn(
            f"{address}: ScalableIPC over UDP is for one host; what comes over a network is "
            "neither encrypted nor authenticated. Use tls:// between hosts",
            stacklevel=2,
        )
    sock = socket.socket(family, kind, protocol)
    try:
        sock.bind(where)
    except OSError as error:
        sock.close()
        raise BindError(f"cannot listen at {address}: {error.strerror}", address=address) from None
    return UdpTransport(sock, listener)


async def _resolve(host: str, port: int, family: int) -> tuple[Address, bool]:
    """Return the address of a host, and whether the host is an IP address."""
    fixed = True
    try:
        found = socket.getaddrinfo(
            host, port, family, socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        fixed = False
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)
        except socket.gaierror as error:
            raise ConnectError(f"cannot find {host!r}: {error.strerror}") from None
    return (str(found[0][4][0]), int(found[0][4][1])), fixed


def _probe(family: int, remote: tuple[str, int]) -> str:
    """Return the kernel's error for a datagram to a remote, or ""."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(remote)
            sock.send(b"")
            sock.recv(1)
        except BlockingIOError:
            return ""
        except OSError as error:
            return f"nothing answers there ({os.strerror(error.errno or 0).lower()})"
    return ""
