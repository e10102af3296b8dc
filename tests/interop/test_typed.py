"""A peer of another language calls a typed server: payloads are literal bytes, from page 10."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import aqueduct
from tests.interop.frames import (
    ACK_VERSION,
    CLOSE_RECEIVER,
    Frame,
    Pairs,
    ack_reliable,
    finish_sender,
    message,
)
from tests.interop.peer import ENTRYPOINT, TIMEOUT, Peer, peer_of
from tests.interop.test_peer import CLIENT_SENDS, SERVER_ANSWERS


class Add(aqueduct.Request[int]):
    a: int
    b: int


class Total(aqueduct.Request[int]):
    numbers: aqueduct.Receiver[int]


class Wait(aqueduct.Request[int]):
    seconds: float


async def handle(request: Add | Total | Wait) -> int:
    if isinstance(request, Add):
        if request.b < 0:
            raise aqueduct.CallError("negative", "b is négative")
        return request.a + request.b
    if isinstance(request, Wait):
        await asyncio.sleep(request.seconds)
        return 0
    return sum([number async for number in request.numbers])


@asynccontextmanager
async def calling(*headers: tuple[bytes, bytes]) -> AsyncIterator[Peer]:
    """Yield a peer that has connected to a server of these requests."""
    async with (
        asyncio.timeout(TIMEOUT),
        aqueduct.serve("127.0.0.1:0", Add | Total | Wait, tls=aqueduct.dev_tls()) as server,
        peer_of(server.address) as peer,
    ):
        serving = asyncio.create_task(server.serve(handle))
        peer.greet(*headers)
        await peer.frame("CONNECTION_HEADERS")
        peer.open(ACK_VERSION)
        yield peer
        assert peer.closed is None
        serving.cancel()


async def reply_to(
    peer: Peer,
    payload: bytes,
    headers: Pairs | None = None,
    *more: tuple[int, Pairs],
    number: int = 0,
    of_reply: Pairs | None = None,
) -> Frame:
    """Send a request with its reply and further channels attached, and return the answer."""
    reply = SERVER_ANSWERS | number << 3
    attach = [(reply, of_reply or []), *more]
    peer.on(ENTRYPOINT, message(number, payload, headers, attach))
    answer = await peer.frame("MESSAGE", reply)
    peer.on(reply, ack_reliable(0, 1), CLOSE_RECEIVER)
    return answer


ADD = b"\x84\xa4type\xa3Add\xa5reply\x00\xa1a\x01\xa1b"


async def test_a_request_is_a_map_and_its_reply_a_value() -> None:
    """AQ-TYPE-1, AQ-TYPE-2, AQ-TYPE-8, AQ-CALL-1."""
    async with calling() as peer:
        answer = await reply_to(peer, ADD + b"\x02")
        assert (answer.text, answer.headers) == (b"\x03", [])


@pytest.mark.parametrize("of_reply", [[(b"content-type", b"application/json")], []])
async def test_in_json_the_same(of_reply: Pairs) -> None:
    """AQ-TYPE-4: each channel has its own codec, the entrypoint that of the connection header."""
    async with calling((b"content-type", b"application/json")) as peer:
        request = b'{"b": 40, "a": 2, "reply": 0, "type": "Add"}'
        answer = await reply_to(peer, request, of_reply=of_reply)
        assert answer.text == (b"42" if of_reply else b"\x2a")


async def test_a_channel_in_a_request_is_the_index_of_its_attachment() -> None:
    """AQ-TYPE-2."""
    async with calling() as peer:
        for number in range(3):
            peer.on(CLIENT_SENDS, message(number, b"\xcc" + bytes([200 + number])))
        peer.on(CLIENT_SENDS, finish_sender(3))
        request = b"\x83\xa4type\xa5Total\xa7numbers\x01\xa5reply\x00"
        answer = await reply_to(peer, request, None, (CLIENT_SENDS, []))
        assert answer.text == b"\xcd\x02\x5b"


@pytest.mark.parametrize(
    ("payload", "headers", "error"),
    [
        (ADD + b"\xff", None, "negative b is négative".encode()),
        (ADD + b"\xa1x", None, b"invalid-request "),
        (b"\x82\xa4type\xa3Sub\xa5reply\x00", None, b"invalid-request "),
        (b"\xc1", None, b"invalid-request "),
        (
            b"\x83\xa4type\xa4Wait\xa5reply\x00\xa7seconds\x3c",
            [(b"aqueduct-timeout", b"50")],
            b"deadline-exceeded ",
        ),
    ],
)
async def test_an_error_comes_in_a_header(
    payload: bytes, headers: Pairs | None, error: bytes
) -> None:
    """AQ-CALL-2, AQ-CALL-3, AQ-CALL-4, AQ-CALL-5: the connection continues."""
    async with calling() as peer:
        answer = await reply_to(peer, payload, headers)
        assert answer.text == b""
        ((name, value),) = answer.headers
        assert name == b"aqueduct-error"
        assert value.startswith(error)
        assert (await reply_to(peer, ADD + b"\x02", number=1)).text == b"\x03"
