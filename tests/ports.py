"""Ports of this host that other processes do not take meanwhile."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BELOW_EPHEMERAL = range(10_000, 32_768)
"""Linux gives none of these to a socket that is bound to port 0, and macOS neither."""


@contextmanager
def closed_port() -> Iterator[int]:
    """Reserve a port of 127.0.0.1 on which the kernel refuses what others send, by UDP and TCP.

    The TCP socket does not listen, and the UDP socket is connected to itself.
    """
    udp, tcp = _bind(lambda: 0)
    with udp, tcp:
        udp.connect(udp.getsockname())
        yield tcp.getsockname()[1]


def free_port() -> int:
    """Return a port of 127.0.0.1 that a server can use, and use again after a restart.

    No other process gets it by chance, because it is not an ephemeral port.
    """
    rng = random.Random()  # not the global one, which a test may have seeded
    udp, tcp = _bind(lambda: rng.choice(_BELOW_EPHEMERAL))
    with udp, tcp:
        return int(tcp.getsockname()[1])


def _bind(choose: Callable[[], int]) -> tuple[socket.socket, socket.socket]:
    """Return a UDP and a TCP socket that are bound to one port."""
    while True:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            udp.bind(("127.0.0.1", choose()))
            tcp.bind(udp.getsockname())
        except OSError:
            udp.close()
            tcp.close()
        else:
            return udp, tcp
