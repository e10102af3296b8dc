"""Batched UDP: many packets per system call where the kernel supports it (GSO, GRO)."""

from __future__ import annotations

import errno
import socket
import struct
from collections import deque
from collections.abc import Sequence

from aqueduct.transport.address import Address

Packet = tuple[bytes, Address]

BUFFER_SIZE = 4 * 1024 * 1024
"""Bytes of the socket's buffers, each way: what arrives while Python is busy for milliseconds."""

_UDP_SEGMENT = 103
_UDP_GRO = 104
_MAX_SEGMENTS = 64
_MAX_BATCH = 65_000
_RECEIVE_SIZE = 65_535
_CONTROL_SIZE = socket.CMSG_SPACE(struct.calcsize("i"))


class UdpSocket:
    """A non-blocking UDP socket that sends and receives runs of packets."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_SIZE)
        self._connected = _is_connected(sock)
        self.gro = _try_option(sock, _UDP_GRO, 1)
        self.gso = _try_option(sock, _UDP_SEGMENT, 0)
        self.error: OSError | None = None
        """The last ICMP or send error, until the owner has read it."""
        self._unsent: deque[Packet] = deque()

    @property
    def waiting(self) -> int:
        """The number of packets that wait for the socket."""
        return len(self._unsent)

    def receive(self) -> tuple[bytes, int, Address] | None:
        """Return joined packets of a peer, the size of each but the last, and its address."""
        try:
            if not self.gro:
                data, address = self.socket.recvfrom(_RECEIVE_SIZE)
                return data, len(data) or 1, address[:2]
            data, control, _, address = self.socket.recvmsg(_RECEIVE_SIZE, _CONTROL_SIZE)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            # An ICMP error of an earlier packet, which a connected socket reports.
            self.error = error
            return None
        segment = len(data)
        for level, kind, value in control:
            if level == socket.IPPROTO_UDP and kind == _UDP_GRO:
                (segment,) = struct.unpack("i", value[:4])
        return data, segment or 1, address[:2]

    def send(self, packets: Sequence[Packet]) -> bool:
        """Send packets, behind those that wait; return False if the socket's buffer is full."""
        if len(packets) == 1 and self._connected and not self._unsent:
            try:
                self.socket.send(packets[0][0])
            except OSError:
                pass  # the general way below handles it
            else:
                return True
        if self._unsent:
            # Wait behind the others: with many connections on a socket, a system call that fails
            # for each of them, or a copy of what waits, would take quadratic time.
            self._unsent.extend(packets)
            return False
        at = self._send_run_by_run(packets)
        self._unsent.extend(packets[at:])
        return at == len(packets)

    def send_waiting(self) -> bool:
        """Send packets that wait, once the socket is writable; return False if some still wait."""
        unsent = self._unsent
        while unsent:
            batch = [unsent.popleft() for _ in range(min(_MAX_SEGMENTS, len(unsent)))]
            at = self._send_run_by_run(batch)
            if at < len(batch):
                unsent.extendleft(reversed(batch[at:]))
                return False
        return True

    def _send_run_by_run(self, queue: Sequence[Packet]) -> int:
        """Send packets until there is no room; return how many were sent or lost."""
        at = 0
        while at < len(queue):
            stop = self._run(queue, at)
            try:
                self._send_run(queue, at, stop)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno == errno.EIO and self.gso:
                    self.gso = False  # the interface does not support it
                    continue
                # Unreachable, too large or not permitted: the packet counts as lost.
                self.error = error
            at = stop
        return at

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _run(self, queue: Sequence[Packet], at: int) -> int:
        """Return the end of the run of packets that one system call can send."""
        if not self.gso:
            return at + 1
        first, address = queue[at]
        size = len(first)
        limit = min(len(queue), at + min(_MAX_SEGMENTS, _MAX_BATCH // max(size, 1)))
        stop = at + 1
        while stop < limit:
            data, other = queue[stop]
            if len(data) > size or other != address:
                break
            stop += 1
            if len(data) < size:
                break
        return stop

    def _send_run(self, queue: Sequence[Packet], at: int, stop: int) -> None:
        data, address = queue[at]
        if stop == at + 1:
            if self._connected:
                self.socket.send(data)
            else:
                self.socket.sendto(data, address)
            return
        control = [(socket.IPPROTO_UDP, _UDP_SEGMENT, struct.pack("=H", len(data)))]
        packets = [packet for packet, _ in queue[at:stop]]
        if self._connected:
            self.socket.sendmsg(packets, control)
        else:
            self.socket.sendmsg(packets, control, 0, address)


def _try_option(sock: socket.socket, option: int, value: int) -> bool:
    try:
        sock.setsockopt(socket.IPPROTO_UDP, option, value)
    except OSError:
        return False
    return True


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True
