"""Over many seeds, the simulated application uses every feature."""

from __future__ import annotations

from collections import Counter
from functools import cache

from aqueduct.protocol.events import End
from aqueduct.testing.checkers import RunFacts
from aqueduct.testing.checkers.rules import NEVER
from aqueduct.testing.checkers.subjects import ChannelFacts
from aqueduct.testing.record import CommandCalled, SendFailed
from aqueduct.testing.simulation import simulate


@cache
def facts_of_many() -> tuple[RunFacts, ...]:
    return tuple(RunFacts(simulate(seed).record) for seed in range(80))


def channels() -> list[ChannelFacts]:
    return [channel for facts in facts_of_many() for channel in facts.channels.values()]


def test_all_modes_and_directions_are_used() -> None:
    used = Counter(
        (channel.mode, channel.sender == channel.creator)
        for channel in channels()
        if channel.messages
    )
    assert len(used) == 6


def test_halves_end_in_every_way() -> None:
    ends = {channel.sender_end.how for channel in channels() if channel.sender_end is not None}
    assert ends == set(End) - {End.STOPPED}
    ends = {c.receiver_end.how for c in channels() if c.receiver_end is not None}
    assert ends == set(End) - {End.RECEIVER_CLOSED}


def test_channels_are_nested_several_levels_deep() -> None:
    def depth(channel: ChannelFacts) -> int:
        return 0 if channel.parent is None else 1 + depth(channel.parent)

    assert max(depth(channel) for channel in channels()) >= 5


def test_messages_are_sent_before_the_carrier_of_their_channel_arrived() -> None:
    assert any(
        channel.carrier is not None
        and any(message.sent.time < channel.carrier.arrived for message in channel.messages)
        for channel in channels()
    )


def test_losses_cascade_over_several_levels() -> None:
    assert any(
        channel.lost and channel.parent is not None and channel.parent.lost
        for channel in channels()
    )


def test_messages_are_dropped_unread_and_channels_finished_without_any() -> None:
    every = channels()
    assert any(m.acked < NEVER and m.taken == NEVER for c in every for m in c.messages)
    assert any(c.finish_called < NEVER and not c.messages for c in every)
    assert any(c.oneshot and not c.messages for c in every)


def test_payloads_are_empty_and_larger_than_the_window() -> None:
    assert any(not m.sent.payload for c in channels() for m in c.messages)
    assert any(
        message.size > facts.record.limits[channel.receiver].channel_window
        for facts in facts_of_many()
        for channel in facts.channels.values()
        for message in channel.messages
    )


def test_credit_runs_out_and_limits_are_reached() -> None:
    errors = {
        entry.error
        for facts in facts_of_many()
        for entry in facts.record.entries
        if isinstance(entry, SendFailed)
    }
    assert errors >= {"WouldBlock", "MessageTooLarge"}


def test_senders_are_ended_twice() -> None:
    ended = Counter(
        (number, entry.channel, entry.verb)
        for number, facts in enumerate(facts_of_many())
        for entry in facts.record.entries
        if isinstance(entry, CommandCalled) and entry.verb in ("finish", "cancel")
    )
    assert max(ended.values()) > 1
