"""Metrics over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from aqueduct.ingest import IngestError
from aqueduct.ingest.server import metrics_http as exposition
from aqueduct.ingest.server.metrics_http import Exposition
from tests.ingest.lab import eventually

PAGE = "# TYPE records counter\nrecords 1\n"


@pytest.fixture
async def page() -> AsyncIterator[Exposition]:
    async with Exposition("127.0.0.1:0", lambda: PAGE) as page:
        yield page


async def ask(page: Exposition, request: bytes) -> bytes:
    host, port = page.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


def parts(answer: bytes) -> tuple[str, dict[str, str], str]:
    head, _, body = answer.decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return status, headers, body


@pytest.mark.parametrize("target", ["/metrics", "/metrics?name=x"])
async def test_get_gives_the_page(page: Exposition, target: str) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n".encode()
    status, headers, body = parts(await ask(page, request))
    assert (status, body) == ("HTTP/1.1 200 OK", PAGE)
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(headers["Content-Length"]) == len(PAGE)
    assert headers["Connection"] == "close"


async def test_head_gives_the_same_without_the_page(page: Exposition) -> None:
    status, headers, body = parts(await ask(page, b"HEAD /metrics HTTP/1.0\r\n\r\n"))
    assert (status, body) == ("HTTP/1.1 200 OK", "")
    assert int(headers["Content-Length"]) == len(PAGE)


async def test_another_page_is_not_found(page: Exposition) -> None:
    status, _, body = parts(await ask(page, b"GET / HTTP/1.1\r\n\r\n"))
    assert (status, body) == ("HTTP/1.1 404 Not Found", "the page is /metrics\n")
    assert parts(await ask(page, b"HEAD / HTTP/1.1\r\n\r\n"))[2] == ""


async def test_another_method_is_not_allowed_and_says_which_are(page: Exposition) -> None:
    request = b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    status, headers, _ = parts(await ask(page, request))
    assert status == "HTTP/1.1 405 Method Not Allowed"
    assert headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x00\xa5" * 20 + b"\r\n\r\n",
        b"GET /metrics\r\n\r\n",
    ],
)
async def test_garbage_is_a_bad_request(page: Exposition, garbage: bytes) -> None:
    assert (await ask(page, garbage)).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert (await ask(page, b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(PAGE.encode())


async def test_an_endless_request_is_not_read_further(page: Exposition) -> None:
    try:
        answer = await ask(page, b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)
    except ConnectionError:
        answer = b""
    assert answer == b""


async def test_a_slow_client_is_disconnected(
    page: Exposition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "_TIMEOUT", 0.05)
    assert await ask(page, b"GET /metr") == b""


@pytest.mark.parametrize("count", [17, 100, 300])
async def test_silent_connections_do_not_block_other_clients(page: Exposition, count: int) -> None:
    host, port = page.address.rsplit(":", 1)
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    answer = await ask(page, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert answer.endswith(PAGE.encode())
    for _ in range(100):
        await asyncio.sleep(0.01)
        if len(page._clients) <= exposition._MAX_CLIENTS:
            break
    assert len(page._clients) <= exposition._MAX_CLIENTS
    for _, writer in silent:
        writer.close()


async def test_a_burst_of_silent_connections_does_not_block_other_clients(page: Exposition) -> None:
    """They arrive between a client's connection and its request."""
    host, port = page.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(100)]
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(10):
        assert (await reader.read()).endswith(PAGE.encode())
    for _, each in [(reader, writer), *silent]:
        each.close()


async def test_clients_that_do_not_read_the_page_hold_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exposition, "_TIMEOUT", 5.0)
    served: list[asyncio.WriteTransport] = []
    made = exposition._make_room

    def note(clients: dict[object, asyncio.StreamWriter], most: int) -> None:
        served.extend(each.transport for each in clients.values() if each.transport not in served)
        made(clients, most)  # type: ignore[arg-type]

    def held() -> list[int]:
        return [size for each in served if (size := each.get_write_buffer_size())]

    monkeypatch.setattr(exposition, "_make_room", note)
    size = 16 * 1024 * 1024
    async with Exposition("127.0.0.1:0", lambda: "x" * size) as page:
        host, port = page.address.rsplit(":", 1)
        clients = []
        for _ in range(exposition._MAX_PAGES + 4):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.connect((host, int(port)))
            sock.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            clients.append(sock)
            await asyncio.sleep(0.02)
        await eventually(lambda: len(served) == len(clients), "all are served")
        assert 0 < len(held()) <= exposition._MAX_PAGES
        await eventually(lambda: not held() and not page._clients, "all are let go")
        for sock in clients:
            sock.close()


async def test_the_address_with_the_most_connections_gives_way(
    page: Exposition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "_MAX_CLIENTS", 3)
    hosts: dict[int, str] = {}
    monkeypatch.setattr(
        exposition, "_host", lambda writer: hosts[writer.get_extra_info("peername")[1]]
    )
    host, port = page.address.rsplit(":", 1)
    opened = []
    for name in ("modest", "greedy", "greedy", "greedy"):
        with socket.socket() as sock:
            sock.bind((host, 0))
            hosts[sock.getsockname()[1]] = name
            sock.connect((host, int(port)))
            opened.append(await asyncio.open_connection(sock=sock.dup()))
        await asyncio.sleep(0.02)
    _, cut, *_ = opened
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            assert await cut[0].read() == b""
    reader, writer = opened[0]  # the oldest of all, and alone
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (await reader.read()).endswith(PAGE.encode())
    for _, each in opened:
        each.close()


async def test_closing_does_not_wait_for_a_silent_client() -> None:
    async with asyncio.timeout(60):
        async with Exposition("127.0.0.1:0", lambda: PAGE) as page:
            host, port = page.address.rsplit(":", 1)
            _, writer = await asyncio.open_connection(host, int(port))
            await asyncio.sleep(0.05)
        writer.close()


async def test_a_page_that_cannot_be_made_is_an_error_of_the_server() -> None:
    def broken() -> str:
        raise RuntimeError("no numbers")

    async with Exposition("127.0.0.1:0", broken) as page:
        answer = await ask(page, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"no numbers" not in answer


async def test_a_port_that_is_taken_is_an_error_that_names_it(page: Exposition) -> None:
    with pytest.raises(IngestError, match=f"cannot serve metrics at {page.address}: Address alre"):
        async with Exposition(page.address, lambda: PAGE):
            pass


async def test_an_ipv6_address_is_written_in_brackets() -> None:
    async with Exposition("[::1]:0", lambda: PAGE) as page:
        assert page.address.startswith("[::1]:")
        _, port = page.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection("::1", int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(PAGE.encode())
        writer.close()
