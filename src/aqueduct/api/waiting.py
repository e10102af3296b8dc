"""Waiting for a channel without sending or receiving, for servers that account for memory."""

from __future__ import annotations

from typing import Any, TypeVar

from aqueduct.api.handles import Receiver, Sender
from aqueduct.errors import WouldBlock

T = TypeVar("T")


async def wait_readable(receiver: Receiver[Any]) -> None:
    """Wait until `receive_nowait` is worth a retry, after it has raised `WouldBlock`.

    For a server that receives a message only when it has the memory for it.
    """
    await receiver._port.wait()


async def wait_for_next(receiver: Receiver[Any]) -> int:
    """Wait for a message, and return its size without decoding it; 0 for the end of the channel.

    For a server that decodes a message only when it has the memory for it.
    """
    while (size := receiver._port.next_size()) is None:
        await receiver._port.wait()
    return size


def try_send(sender: Sender[T], value: T) -> bool:
    """Send without waiting; return False without credit, then `wait_writable` waits for it."""
    try:
        sender._port.send(value, (), None)
    except WouldBlock:
        return False
    return True


async def wait_writable(sender: Sender[Any]) -> None:
    """Wait until `try_send` is worth a retry, without holding a message.

    For a server that frees the memory of messages that a slow client does not receive.
    """
    await sender._port.wait()
