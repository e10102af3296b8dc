"""Serves the metrics to Prometheus over HTTP: one page, ``/metrics``."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable

from aqueduct.ingest.errors import IngestError
from aqueduct.transport.address import split_address

_log = logging.getLogger("aqueduct.ingest")
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT = 5.0
"""Seconds for a client to send its request and to read the response."""
_MAX_REQUEST = 8_192
_MAX_CLIENTS = 128
"""Connections at a time; past that the server closes the oldest one of the address with the most,
so that idle connections do not lock out Prometheus. Enough that a client has sent its request
before as many others have connected."""
_MAX_PAGES = 16
"""Pages in memory that clients have not read: with many topics each takes megabytes. Past that the
server closes a connection as above."""


_Clients = dict[asyncio.Task[None] | None, asyncio.StreamWriter]


class Exposition:
    """Answers ``GET /metrics`` with the text that a function returns."""

    def __init__(self, address: str, text: Callable[[], str]) -> None:
        self._asked_address = address
        self._text = text
        self._clients: _Clients = {}
        self._unread: _Clients = {}
        """Clients that have not read their whole response."""
        self._server: asyncio.Server

    async def __aenter__(self) -> Exposition:
        host, port = split_address(self._asked_address)
        try:
            self._server = await asyncio.start_server(
                self._handle, host or "127.0.0.1", port, limit=_MAX_REQUEST
            )
        except OSError as error:
            # asyncio's message for a port in use is long, and repeats the address.
            number = error.errno or 0
            why = os.strerror(number) if number > 0 else error.strerror
            raise IngestError(f"cannot serve metrics at {self._asked_address}: {why}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        tasks = [task for task in self._clients if task is not None]
        for writer in self._clients.values():
            writer.transport.abort()  # `wait_closed` would wait for idle clients
        await asyncio.gather(*tasks)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """The address that it listens at, as ``host:port``."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._clients[task] = writer
        _make_room(self._clients, _MAX_CLIENTS)
        writer.transport.set_write_buffer_limits(0)  # `drain` waits until everything is sent
        try:
            async with asyncio.timeout(_TIMEOUT):
                request = await reader.readuntil(b"\r\n\r\n")
                self._unread[task] = writer
                _make_room(self._unread, _MAX_PAGES)
                writer.write(self._answer(request.split(b"\r\n", 1)[0]))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # no response to a malformed or slow request
        finally:
            del self._clients[task]
            self._unread.pop(task, None)
            # `close` would wait indefinitely for a client that does not read.
            writer.transport.abort()

    def _answer(self, line: bytes) -> bytes:
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return _response("400 Bad Request", "this is an HTTP server\n", True)
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            allow = "Allow: GET, HEAD\r\n"
            return _response("405 Method Not Allowed", "only GET is supported\n", True, allow)
        if target.split(b"?", 1)[0] != b"/metrics":
            return _response("404 Not Found", "the page is /metrics\n", method == b"GET")
        try:
            text = self._text()
        except Exception:  # noqa: BLE001 -- answered with status 500
            _log.exception("the metrics page could not be created")
            return _response("500 Internal Server Error", "see the log\n", method == b"GET")
        return _response("200 OK", text, method == b"GET")


def _make_room(clients: _Clients, most: int) -> None:
    """Close the oldest connection of the address with the most, if there are too many."""
    if len(clients) <= most:
        return
    open_ = [each for each in clients.values() if not each.transport.is_closing()]
    counts = Counter(_host(writer) for writer in open_)
    if counts.total() > most:
        max(open_, key=lambda writer: counts[_host(writer)]).transport.abort()


def _host(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _response(status: str, text: str, with_body: bool, more: str = "") -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n{more}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
