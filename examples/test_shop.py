"""Tests of shop.py, without sockets: run them with ``pytest examples/test_shop.py``.

`memory://` connects the real client to the real server within the process: only the address differs
from production. A test may also talk to one of them by itself, as a client or server that fails.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import aqueduct
from examples.shop import Follow, Request, Reserve, Shop, order

TLS, TRUST = aqueduct.dev_tls(), aqueduct.dev_trust()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


@asynccontextmanager
async def open_shop(**stock: int) -> AsyncIterator[str]:
    """Serve a shop, and return its address."""
    async with aqueduct.serve("memory://", Request, tls=TLS) as server:
        serving = asyncio.create_task(server.serve(Shop(stock).handle))
        yield server.address
        serving.cancel()


def test_a_basket_is_reserved() -> None:
    async def scenario() -> None:
        async with open_shop(tea=3, cups=1) as address:
            assert await order(address, TRUST, {"tea": 2, "cups": 1}) == []
            assert await order(address, TRUST, {"tea": 2}) == ["tea"]

    run(scenario())


def test_followers_see_each_change_and_one_that_leaves_harms_nobody() -> None:
    async def scenario() -> None:
        async with (
            open_shop(tea=3) as address,
            aqueduct.connect(address, Request, trust=TRUST) as connection,
        ):
            theirs, stock = aqueduct.channel(int)
            await connection.entrypoint.send(Follow("tea", theirs))
            assert await stock.receive() == 3
            await order(address, TRUST, {"tea": 1})
            assert await stock.receive() == 2
            stock.close()
            assert await order(address, TRUST, {"tea": 2}) == []

    run(scenario())


def test_an_unknown_article_is_an_error_with_a_code() -> None:
    async def scenario() -> None:
        async with open_shop() as address:
            with pytest.raises(aqueduct.CallError) as caught:
                await order(address, TRUST, {"milk": 1})
            assert caught.value.code == "unknown-article"

    run(scenario())


def test_a_client_gives_up_on_a_shop_that_does_not_answer() -> None:
    async def wait_for_ever(request: Request) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with aqueduct.serve("memory://", Request, tls=TLS) as server:
            serving = asyncio.create_task(server.serve(wait_for_ever))
            with pytest.raises(aqueduct.CallTimeout):
                await order(server.address, TRUST, {"tea": 1})
            serving.cancel()

    run(scenario())


def test_a_request_can_be_handled_without_any_connection() -> None:
    async def scenario() -> None:
        assert await Shop({"tea": 3}).handle(Reserve(article="tea", pieces=2)) == 1

    run(scenario())
