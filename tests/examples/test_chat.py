"""The chat: who leaves, disconnects or is too slow, and what the others see of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import aqueduct
from examples.chat import Chat, Event, Join, Joined, Left, Member, Said
from tests.examples.running import connect, serving


async def next_events(member: Member, count: int) -> list[Event]:
    return [await member.events.receive() for _ in range(count)]


async def test_rooms_are_separate_and_end_with_their_last_member() -> None:
    chat = Chat()
    async with serving(chat.join, Join) as server, connect(server, Join) as connection:
        ann, bob = Member("garden", "ann"), Member("cellar", "bob")
        for member in (ann, bob):
            await member.join(connection)
            assert await member.events.receive() == Joined(member.request.name)
        await ann.lines.send("anybody here?")
        assert await ann.events.receive() == Said("ann", "anybody here?")
        assert set(chat.rooms) == {"garden", "cellar"}
        ann.lines.finish()
        bob.events.close()
        with pytest.raises(aqueduct.ChannelCancelled):  # the handler ended, and its halves with it
            await next_events(ann, 1)
        await bob.lines.wait_closed()
        assert chat.rooms == {}
        bob.lines.finish()
        ann.events.close()


async def test_a_client_that_dies_leaves_its_room() -> None:
    async with serving(Chat().join, Join) as server, connect(server, Join) as connection:
        ann, bob = Member("garden", "ann"), Member("garden", "bob")
        await ann.join(connection)
        assert await next_events(ann, 1) == [Joined("ann")]
        with contextlib.suppress(RuntimeError):
            async with connect(server, Join) as other:
                await bob.join(other)
                assert await next_events(ann, 1) == [Joined("bob")]
                raise RuntimeError("a fault of the program")
        assert await next_events(ann, 1) == [Left("bob")]
        with pytest.raises(aqueduct.ConnectionLost):
            await next_events(bob, 3)
        await ann.leave()


async def test_a_name_that_is_taken_cannot_join() -> None:
    async with serving(Chat().join, Join) as server, connect(server, Join) as connection:
        first, second = Member("garden", "ann"), Member("garden", "ann")
        await first.join(connection)
        assert await next_events(first, 1) == [Joined("ann")]
        await second.join(connection)
        with pytest.raises(aqueduct.ChannelCancelled):
            await next_events(second, 1)
        await first.lines.send("still here")
        assert await next_events(first, 1) == [Said("ann", "still here")]
        await first.leave()
        second.lines.cancel()


async def test_who_joins_slowly_keeps_the_name_while_others_join_and_leave() -> None:
    chat = Chat()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with (
        serving(chat.join, Join) as server,
        connect(server, Join) as connection,
        connect(server, Join, limits=aqueduct.Limits(channel_window=1_000)) as narrow,
    ):
        names = [f"{number}{'x' * 500}" for number in range(5)]
        others = [Member("garden", name) for name in names]
        for member in others:
            await member.join(connection)
            await member.events.receive()
        slow, twin = Member("garden", "slow"), Member("garden", "slow")
        await slow.join(narrow)
        while await others[0].events.receive() != Joined("slow"):
            pass
        # Two of five names fit into the window.
        await twin.join(connection)
        with pytest.raises(aqueduct.ChannelCancelled):
            await next_events(twin, 1)
        assert await next_events(slow, 6) == [*map(Joined, names), Joined("slow")]
        await slow.leave()
        assert await others[0].events.receive() == Left("slow")
        await twin.leave()

        again = Member("garden", "slow")
        await again.join(narrow)
        assert await others[0].events.receive() == Joined("slow")
        await others[4].leave()  # the slow one has no room for this
        left = await next_events(others[0], 2)
        assert {type(event) for event in left} == {Left}
        assert {event.name for event in left} == {names[4], "slow"}
        with pytest.raises(aqueduct.ChannelCancelled):
            await next_events(again, 6)
        for member in (*others[:4], again):
            await member.leave()
    assert reported == []


async def test_a_member_that_does_not_receive_is_removed_and_the_others_go_on() -> None:
    async with (
        serving(Chat().join, Join) as server,
        connect(server, Join) as connection,
        connect(server, Join) as idle,
    ):
        ann, slow = Member("garden", "ann"), Member("garden", "slow")
        await ann.join(connection)
        assert await next_events(ann, 1) == [Joined("ann")]
        await slow.join(idle)
        assert await next_events(ann, 1) == [Joined("slow")]
        text = "x" * 64 * 1024
        while True:
            await ann.lines.send(text)
            if await ann.events.receive() == Left("slow"):
                break
        with pytest.raises(aqueduct.ChannelCancelled):
            await next_events(slow, 1_000)
        await ann.leave()
        slow.lines.cancel()
