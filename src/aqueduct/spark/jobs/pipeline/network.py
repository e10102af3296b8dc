"""A network on this host that loses packets: what the unreliable channels are there for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from random import Random
from typing import Any

_BUFFER = 4 * 1024 * 1024
_LARGEST = 65_535
_PACKETS = 64
"""Taken from a socket before others have their turn."""


class LossyNetwork:
    """Passes packets between clients and one server, and loses a share of them both ways."""

    def __init__(self, server: tuple[str, int], loss: float, seed: int) -> None:
        self._server = server
        self._loss = loss
        self._random = Random(seed)
        self._loop = asyncio.get_running_loop()
        self._ways: dict[Any, socket.socket] = {}
        self._socket = _udp()
        self._socket.bind(("127.0.0.1", 0))
        self._loop.add_reader(self._socket, self._from_clients)
        self.passed = self.lost = 0

    @property
    def address(self) -> str:
        """Where clients connect to."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        """Nothing passes any more."""
        for sock in (self._socket, *self._ways.values()):
            self._loop.remove_reader(sock)
            sock.close()
        self._ways.clear()

    def _from_clients(self) -> None:
        for _ in range(_PACKETS):
            try:
                data, client = self._socket.recvfrom(_LARGEST)
            except OSError:
                return
            if (way := self._ways.get(client)) is None:
                way = self._ways[client] = _udp()
                way.connect(self._server)
                self._loop.add_reader(way, self._from_server, way, client)
            if self._passes():
                with contextlib.suppress(OSError):  # a full socket loses it, too
                    way.send(data)

    def _from_server(self, way: socket.socket, client: Any) -> None:
        for _ in range(_PACKETS):
            try:
                data = way.recv(_LARGEST)
            except OSError:
                return
            if self._passes():
                with contextlib.suppress(OSError):
                    self._socket.sendto(data, client)

    def _passes(self) -> bool:
        lost = self._random.random() < self._loss
        self.lost += lost
        self.passed += not lost
        return not lost


def _udp() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return sock
