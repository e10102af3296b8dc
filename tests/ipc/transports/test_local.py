"""PDUs within one process."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aqueduct import ipc
from aqueduct.errors import BindError, ConnectError, SendTimeout


async def test_a_name_belongs_to_one_endpoint_until_it_is_closed() -> None:
    async with ipc.Endpoint("local://door") as first:
        assert first.address == "local://door"
        with pytest.raises(BindError, match="is taken") as caught:
            await ipc.Endpoint("local://door").open()
        assert caught.value.address == "local://door"
    async with ipc.Endpoint("local://door"):
        pass


async def test_a_name_is_generated_if_none_is_given() -> None:
    async with ipc.Endpoint("local://") as first, ipc.Endpoint("local://") as second:
        assert first.address != second.address


async def test_an_unregistered_name_is_reported() -> None:
    quick = ipc.IpcSettings(ack_timeout=0.1, receive_timeout=0.1)
    async with ipc.Endpoint("local://", config=quick) as endpoint:
        with pytest.raises(SendTimeout, match="no endpoint of this process"):
            await endpoint.send("local://unknown", b"x")
        with pytest.raises(ConnectError, match="cannot send to"):
            await endpoint.send("udp://127.0.0.1:1", b"x")


def test_a_closed_loop_releases_the_names_of_its_endpoints() -> None:
    async def forget() -> None:
        await ipc.Endpoint("local://Forgotten").open()

    async def remember() -> None:
        async with ipc.Endpoint("local://") as endpoint:
            with pytest.raises(SendTimeout, match="no endpoint of this process"):
                await endpoint.send("local://Forgotten", b"x", timeout=0.05)

    async def have() -> None:
        async with ipc.Endpoint("local://Forgotten"), ipc.Endpoint("local://forgotten"):
            pass

    def forget_and(after: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(forget())
        asyncio.run(after())
        gc.collect()

    for after in (remember, have):
        with pytest.warns(ResourceWarning, match="local://Forgotten.* was not closed"):
            forget_and(after)
