"""Slots for readers: shared fairly over connections, and taken from readers with idle clients."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from aqueduct.ingest.server.read_slots import Slots


class Reader:
    """A holder that waits for a slot."""

    def __init__(self, connection: str, size: int = 0) -> None:
        self.connection = connection
        self.size = size
        self.has_slot = False
        self.was_evicted = False
        self.evictions = 0

    def evict(self) -> None:
        self.evictions += 1
        self.size = 0


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def queued(slots: Slots, readers: list[Reader]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(slots.acquire(reader)) for reader in readers]
    await settle()
    return tasks


async def test_connections_get_slots_in_turn_however_many_each_wants() -> None:
    slots = Slots(1, 1, 1_000)
    first = Reader("greedy")
    await slots.acquire(first)
    greedy = [Reader("greedy") for _ in range(50)]
    modest = Reader("modest")
    tasks = await queued(slots, [*greedy, modest])
    slots.release(first)
    await settle()
    served = [each for each in [*greedy, modest] if each.has_slot]
    assert len(served) == 1
    slots.release(served[0])
    await settle()
    assert modest.has_slot or served == [modest]  # the second turn at the latest
    for task in tasks:
        task.cancel()


async def test_one_connection_has_no_more_than_its_share() -> None:
    slots = Slots(4, 2, 1_000)
    greedy = [Reader("greedy") for _ in range(5)]
    tasks = await queued(slots, greedy)
    assert [each.has_slot for each in greedy] == [True, True, False, False, False]
    assert slots.free == 2
    modest = Reader("modest")
    await slots.acquire(modest)
    for task in tasks:
        task.cancel()


async def test_an_idle_reader_yields_its_slot_and_an_active_one_does_not() -> None:
    slots = Slots(2, 2, 1_000)
    dripping, at_work = Reader("a"), Reader("a")
    await slots.acquire(dripping)
    await slots.acquire(at_work)
    slots.idle(dripping)
    assert (dripping.has_slot, dripping.evictions) == (True, 0)  # no holder waits for it
    other = Reader("b")
    await slots.acquire(other)
    assert (dripping.has_slot, dripping.evictions) == (False, 1)
    assert at_work.has_slot
    assert not slots.is_wanted(at_work)
    (task,) = await queued(slots, [late := Reader("c")])
    assert not late.has_slot
    assert slots.is_wanted(at_work)
    slots.idle(at_work)
    await task
    assert (at_work.has_slot, late.has_slot) == (False, True)


async def test_leaving_the_queue_releases_everything() -> None:
    slots = Slots(1, 1, 1_000)
    first, gone, last = Reader("a"), Reader("b"), Reader("c")
    await slots.acquire(first)
    leaving, staying = await queued(slots, [gone, last])
    slots.release(first)  # granted, and cancelled before it was woken
    leaving.cancel()
    await staying
    assert (gone.has_slot, last.has_slot) == (False, True)
    slots.release(last)
    slots.release(last)  # again: a no-op
    assert slots.free == 1
    assert not slots._held
    assert not slots._waiting


async def test_slots_are_neither_lost_nor_duplicated() -> None:
    rng = random.Random(11)
    slots = Slots(3, 2, 1_000)
    readers = [Reader(f"connection {number % 4}") for number in range(12)]
    waiting: dict[Reader, asyncio.Task[None]] = {}
    for _ in range(3_000):
        reader = rng.choice(readers)
        what = rng.randrange(4)
        if reader.has_slot:
            (slots.release, slots.idle, slots.busy, slots.release)[what](reader)
        elif reader in waiting and not waiting[reader].done():
            if what == 0:
                waiting[reader].cancel()
        else:
            waiting[reader] = asyncio.create_task(slots.acquire(reader))
        if rng.random() < 0.5:
            await settle()
        holders = Counter(each.connection for each in readers if each.has_slot)
        assert sum(holders.values()) + slots.free == 3
        assert max(holders.values(), default=0) <= 2
        assert slots._held == holders
    for task in waiting.values():
        task.cancel()
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    for reader in readers:
        slots.release(reader)
    assert slots.free == 3
    assert not slots._waiting
    assert not slots._resuming
    assert not slots._resumed
    assert not slots._idle


async def test_resumed_readers_leave_slots_to_active_readers() -> None:
    """Each resumption reads the rows again, for one batch that a slow client takes."""
    slots = Slots(8, 4, 1_000)
    slow = [Reader(f"slow {number}") for number in range(64)]
    for reader in slow:
        await slots.acquire(reader)
        slots.idle(reader)
    assert sum(each.was_evicted for each in slow) == 56
    tasks = await queued(slots, slow[:56])  # all their clients take a batch at once
    assert [each.has_slot for each in slow[:56]] == [True] + [False] * 55
    for _ in range(20):
        prompt = Reader("prompt")
        async with asyncio.timeout(60):
            await slots.acquire(prompt)  # before the resumed ones
        slots.release(prompt)
    for reader in slow[:56]:  # and all of these get a slot
        await settle()
        assert reader.has_slot
        slots.idle(reader)
    for task in tasks:
        assert task.done()


async def test_a_resumed_reader_gets_its_turn_however_many_new_ones_come() -> None:
    slots = Slots(1, 1, 1_000)
    slow, new = Reader("slow"), [Reader(f"new {number}") for number in range(9)]
    await slots.acquire(slow)
    slots.idle(slow)
    await slots.acquire(new[0])
    assert slow.was_evicted
    tasks = await queued(slots, [slow, *new[1:]])
    slots.release(new[0])
    await settle()
    assert slow.has_slot
    for task in tasks:
        task.cancel()


async def test_idle_readers_keep_a_bounded_number_of_bytes() -> None:
    """Each idle reader may have a whole row group in memory while no other waits for its slot."""
    slots = Slots(64, 64, 1_000)
    readers = [Reader("a", 400) for _ in range(5)]
    for reader in readers:
        await slots.acquire(reader)
        slots.idle(reader)
        assert sum(each.size for each in readers[: readers.index(reader) + 1]) <= 1_000
    assert [each.evictions for each in readers] == [1, 1, 1, 0, 0]
    assert all(each.has_slot for each in readers)
