"""The RPC service: who may do what, and calls that are given up or cancelled half way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import aqueduct
from examples.rpc import Get, Keys, Load, Method, Put, Store, accept

ANN, GUEST = "token-of-ann", "token-of-guest"


@asynccontextmanager
async def store(values: Store, token: str) -> AsyncIterator[Any]:
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with (
        asyncio.timeout(60),
        aqueduct.serve("memory://", Method, tls=tls, accept=accept) as server,
    ):
        task = asyncio.create_task(server.run(values.handle_client))
        headers = {"authorization": token}
        async with aqueduct.connect(server.address, Method, trust=trust, headers=headers) as client:
            yield client
        task.cancel()


async def test_a_guest_may_read_and_not_write() -> None:
    values = Store()
    values.values["color"] = "blue"
    async with store(values, GUEST) as client:
        assert await client.entrypoint.call(Get(key="color")) == "blue"
        with pytest.raises(aqueduct.CallError, match="guest may only read") as caught:
            await client.entrypoint.call(Put(key="color", value="red"))
        assert caught.value.code == "forbidden"
    assert values.values == {"color": "blue"}


@pytest.mark.parametrize("token", ["", "token-of-an", "token-of-anna"])
async def test_a_client_without_a_known_token_is_refused(token: str) -> None:
    with pytest.raises(aqueduct.Unauthenticated):
        async with store(Store(), token):
            pass


async def test_a_load_that_is_cancelled_half_way_stores_nothing() -> None:
    values = Store()
    async with store(values, ANN) as client:
        pairs, theirs = aqueduct.channel(tuple[str, str])
        loading = asyncio.create_task(client.entrypoint.call(Load(pairs=theirs)))
        await pairs.send(("a", "1"))
        await pairs.flush()
        pairs.cancel()
        with pytest.raises(aqueduct.ChannelError):
            await loading
        with pytest.raises(aqueduct.CallError, match="not-found"):
            await client.entrypoint.call(Get(key="a"))
    assert values.values == {}


async def test_a_caller_that_gives_up_affects_no_other_call() -> None:
    values = Store()
    values.values = {f"{number:05}": "" for number in range(20_000)}
    async with store(values, ANN) as client:
        theirs, keys = aqueduct.channel(str)
        await client.entrypoint.send(Keys("", theirs))
        assert await keys.receive() == "00000"
        keys.close()  # 20,000 keys would have come
        assert await client.entrypoint.call(Get(key="00001")) == ""
