"""Metrics over HTTP, as Prometheus asks for them: one page, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aqueduct.channel.address import split_address
from aqueduct.ingest.faults import IngestError

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PATIENCE = 5.0
"""Seconds that somebody may take to ask."""
_MAX_REQUEST = 8_192
_MAX_CLIENTS = 16


class Exposition:
    """Answers ``GET /metrics`` with what a function says."""

    def __init__(self, address: str, text: Callable[[], str]) -> None:
        self._asked_address = address
        self._text = text
        self._clients = 0
        self._server: asyncio.Server

    async def __aenter__(self) -> Exposition:
        host, port = split_address(self._asked_address)
        try:
            self._server = await asyncio.start_server(
                self._handle, host or "127.0.0.1", port, limit=_MAX_REQUEST
            )
        except OSError as error:
            raise IngestError(
                f"cannot serve metrics at {self._asked_address}: {error.strerror}"
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                if self._clients <= _MAX_CLIENTS:
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(request.split(b"\r\n", 1)[0]))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asks badly is not answered
        finally:
            self._clients -= 1
            writer.close()

    def _answer(self, line: bytes) -> bytes:
        method, _, rest = line.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "only GET is known here\n", True)
        if path != b"/metrics":
            return _response("404 Not Found", "the page is /metrics\n", method == b"GET")
        return _response("200 OK", self._text(), method == b"GET")


def _response(status: str, text: str, with_body: bool) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
