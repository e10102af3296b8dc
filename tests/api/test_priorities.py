"""`priority` of channels and senders: local, networked and blocking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aqueduct import ChannelMoved, blocking, channel, oneshot
from tests.api.joined import GiveReceiver, GiveSender, joined


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


def test_a_sender_has_the_priority_of_its_channel_and_can_change_it() -> None:
    for make in (channel, oneshot):
        sender, receiver = make(int)
        assert sender.priority == 4
        sender.priority = 0
        assert sender.priority == 0
        sender.cancel()
        receiver.close()
        sender, receiver = make(int, priority=7)
        assert sender.priority == 7
        sender.cancel()
        receiver.close()


async def test_the_priority_stays_with_the_sender_and_is_not_known_to_the_peer() -> None:
    """AQ-PRIO-1."""
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = channel(int, priority=6)
        await client.entrypoint.send(GiveReceiver(receiver))
        assert sender.priority == 6
        theirs = (await server.entrypoint.receive()).half
        sender.priority = 1
        await sender.send(1)
        assert await theirs.receive() == 1
        port: Any = sender._port
        assert port.core.priority_of(port.channel) == 1
        sender.finish()
        theirs.close()
    async with joined(GiveSender[int]) as (client, server):
        sender, receiver = channel(int, priority=6)
        await client.entrypoint.send(GiveSender(sender))
        with pytest.raises(ChannelMoved):
            sender.priority = 2
        theirs = (await server.entrypoint.receive()).half
        assert theirs.priority == 4
        theirs.priority = 0
        assert theirs.priority == 0
        theirs.finish()
        receiver.close()


async def test_the_entrypoint_has_a_priority() -> None:
    async with joined(int) as (client, _):
        assert client.entrypoint.priority == 4
        client.entrypoint.priority = 2
        assert client.entrypoint.priority == 2
    client.entrypoint.priority = 3
    assert client.entrypoint.priority == 3


@pytest.mark.parametrize("wrong", ["0", None, 1.0, True])
def test_a_priority_of_another_type_is_a_type_error_at_the_call(wrong: Any) -> None:
    for make in (channel, oneshot, blocking.channel, blocking.oneshot):
        with pytest.raises(TypeError, match="a priority is an int from 0 to 7, not"):
            make(int, priority=wrong)
    sender, receiver = channel(int)
    with pytest.raises(TypeError, match="a priority is an int"):
        sender.priority = wrong
    assert sender.priority == 4
    sender.cancel()
    receiver.close()


@pytest.mark.parametrize("wrong", [-1, 8])
async def test_a_priority_out_of_range_is_a_value_error_at_the_call(wrong: int) -> None:
    for make in (channel, oneshot):
        with pytest.raises(ValueError, match=f"from 0, which leaves first, to 7, not {wrong}"):
            make(int, priority=wrong)
    async with joined(int) as (client, _):
        with pytest.raises(ValueError, match="a priority is from 0"):
            client.entrypoint.priority = wrong
        assert client.entrypoint.priority == 4


def test_a_blocking_sender_has_a_priority() -> None:
    sender, receiver = blocking.channel(int, priority=3)
    with sender, receiver:
        assert sender.priority == 3
        sender.priority = 5
        assert sender.priority == 5
        with pytest.raises(ValueError, match="a priority is from 0"):
            sender.priority = 9
