"""What all ports share: receipts, moved halves, messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aqueduct import DELIVERED, LOST, ChannelMoved, Headers, Message
from aqueduct.runtime.ports import MOVED, Outcome, Parcel


async def test_a_receipt_is_settled_once() -> None:
    receipt: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    parcel = Parcel("x", (), receipt)
    parcel.settle(DELIVERED)
    parcel.settle(LOST)
    assert await receipt is DELIVERED


async def test_a_cancelled_receipt_is_not_settled() -> None:
    receipt: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    receipt.cancel()
    Parcel("x", (), receipt).settle(DELIVERED)
    Parcel("x", (), None).settle(LOST)
    assert receipt.cancelled()


@pytest.mark.parametrize("use", ["offer", "send", "pop", "pop_message", "pop_many", "next_size"])
def test_a_moved_half_can_neither_send_nor_receive(use: str) -> None:
    with pytest.raises(ChannelMoved, match="was sent away in a message"):
        getattr(MOVED, use)("anything")


async def test_waiting_on_a_moved_half_raises() -> None:
    with pytest.raises(ChannelMoved):
        await MOVED.wait()
    with pytest.raises(ChannelMoved):
        await MOVED.flush()


def test_ending_a_moved_half_is_a_no_op() -> None:
    MOVED.finish()
    MOVED.cancel()
    MOVED.close()
    MOVED.abandon()
    assert not MOVED.is_open()
    assert not MOVED.is_pressed()
    assert MOVED.statistics() == {}
    assert MOVED.ready == []


def test_messages_compare_by_payload_headers_and_number() -> None:
    class Held:
        def halves(self) -> tuple[Any, ...]:
            return ("a half",)

    plain: Message[bytes] = Message(b"x", Headers(((b"a", b"b"),)), 3)
    rich = Message(b"x", Headers(((b"a", b"b"),)), 3, Held())
    assert plain == rich
    assert plain != Message(b"x", Headers(), 3)
    assert plain.attachments == ()
    assert rich.attachments == ("a half",)
    assert "Held" not in repr(rich)
    with pytest.raises(AttributeError):
        plain.number = 4  # type: ignore[misc]  # it is frozen
