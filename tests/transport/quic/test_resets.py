"""Stateless resets: only the server that stated a token can repeat it, and no flood comes of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing

import pytest

import aqueduct
from aqueduct.transport.quic.endpoint import ID_LENGTH
from aqueduct.transport.quic.resets import LEAST_SIZE, TOKEN_SIZE, StatelessResets
from aqueduct.transport.settings import QuicSettings

KNOWN = b"12345678"


def resets(
    key: bytes = b"key",
    host: str = "host",
    address: str = "0.0.0.0:4433",
    per_second: int = 1_000,
    clock: Callable[[], float] = lambda: 0.0,
) -> StatelessResets:
    return StatelessResets(key, host, address, per_second, clock)


def test_a_restarted_server_repeats_its_tokens() -> None:
    """AQ-IDLE-3."""
    assert resets().token(KNOWN) == resets().token(KNOWN)
    assert len(resets().token(KNOWN)) == TOKEN_SIZE


@pytest.mark.parametrize(
    "other",
    [resets(key=b"k"), resets(host="b"), resets(address="0.0.0.0:1"), resets(host="host\x000")],
)
def test_another_server_cannot_be_asked_for_a_token(other: StatelessResets) -> None:
    """AQ-IDLE-3: also one with the same certificate."""
    assert other.token(KNOWN) != resets().token(KNOWN)


def test_each_connection_has_a_token_of_its_own() -> None:
    assert resets().token(KNOWN) != resets().token(b"87654321")


@pytest.mark.parametrize("size", [*range(60), 1_200, 65_527])
def test_an_answer_is_smaller_than_the_packet_and_looks_like_one(size: int) -> None:
    """AQ-IDLE-3."""
    answer = resets().answer(KNOWN, size)
    if size <= LEAST_SIZE:
        assert answer is None
    else:
        assert answer is not None
        assert LEAST_SIZE <= len(answer) < min(size, 64)
        assert answer[0] >> 6 == 0b01
        assert answer.endswith(resets().token(KNOWN))


def test_two_servers_that_answer_each_other_fall_silent() -> None:
    """AQ-IDLE-3."""
    servers = (resets(), resets(host="other"))
    size, rounds = 1_200, 0
    while (answer := servers[rounds % 2].answer(KNOWN, size)) is not None:
        size = len(answer)
        rounds += 1
    assert rounds < 60


def test_the_answers_of_a_second_are_bounded() -> None:
    """AQ-IDLE-3."""
    now = 0.0
    some = resets(per_second=3, clock=lambda: now)
    assert [some.answer(KNOWN, 100) is not None for _ in range(5)] == [True] * 3 + [False] * 2
    now = 1.0
    assert some.answer(KNOWN, 100) is not None
    assert resets(per_second=0).answer(KNOWN, 100) is None


STRAY = bytes([0x40]) + KNOWN + bytes(40)


async def ask(packet: bytes, options: QuicSettings) -> list[bytes]:
    """Return the answers of a server to a packet, and to two more that it does answer, or not."""
    async with aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls(), options=options) as server:
        loop = asyncio.get_running_loop()
        host, port = server.address.rsplit(":", 1)
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
            sock.setblocking(False)
            sock.connect((host, int(port)))
            # A server answers an unknown version; what it answers before that, comes before that.
            version = bytes([0xC0, 1, 1, 1, 1, 8]) + KNOWN + bytes([8]) + bytes(1_300)
            sock.send(packet)
            sock.send(version)
            answers: list[bytes] = []
            async with asyncio.timeout(30):
                while True:
                    answer = await loop.sock_recv(sock, 2_000)
                    if answer[0] & 0x80:
                        return answers
                    answers.append(answer)


async def test_a_server_answers_a_packet_of_an_unknown_connection_once() -> None:
    """AQ-IDLE-3."""
    (answer,) = await ask(STRAY, QuicSettings())
    assert len(answer) < len(STRAY)


@pytest.mark.parametrize(
    ("packet", "options"),
    [
        (STRAY, QuicSettings(max_resets=0)),
        (STRAY[:LEAST_SIZE], QuicSettings()),
        (STRAY[:ID_LENGTH], QuicSettings()),
        (bytes(1) + STRAY[1:], QuicSettings()),
    ],
    ids=["none are wanted", "a short packet", "less than an id", "no packet of QUIC"],
)
async def test_a_server_does_not_answer(packet: bytes, options: QuicSettings) -> None:
    """AQ-IDLE-3."""
    assert await ask(packet, options) == []
