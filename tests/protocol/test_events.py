"""Events are plain values, and the last one about a channel is its end."""

from dataclasses import FrozenInstanceError, fields

import pytest

from aqueduct.errors import CloseCode
from aqueduct.protocol.connection import Mode
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    End,
    Event,
    PeerHeaders,
    Readable,
    ReceiverEnded,
    SenderEnded,
    Undelivered,
    Writable,
)
from aqueduct.wire.chanid import ENTRYPOINT
from tests.protocol.wires import GIVE_RECEIVER, GIVE_SENDER, Pair

ONE_OF_EACH: list[Event] = [
    PeerHeaders(()),
    Readable(0),
    Writable(0),
    Delivered(0, True, ((0, 1),)),
    Undelivered(0, False, ((0, 1),)),
    ReceiverEnded(0, End.FINISHED),
    SenderEnded(0, End.LOST, (8, 0)),
    ConnectionEnded(0, "", True),
]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_an_event_is_a_frozen_value(event: Event) -> None:
    twin = type(event)(*(getattr(event, field.name) for field in fields(event)))
    assert twin == event
    assert hash(twin) == hash(event)
    with pytest.raises(FrozenInstanceError):
        setattr(event, fields(event)[0].name, None)


def ends(events: list[Event]) -> list[tuple[int, str]]:
    return [
        (event.channel, event.how.value)
        for event in events
        if isinstance(event, SenderEnded | ReceiverEnded)
    ]


def test_every_open_half_ends_before_the_connection_does() -> None:
    """AQ-CONN-7: on both sides, and the connection's own end is the very last event."""
    pair = Pair()
    receiving = pair.give_receiver(Mode.UNORDERED)
    sending = pair.give_sender()
    pair.client.close_connection(CloseCode.GOING_AWAY, "shutting down", pair.now)
    pair.run()
    everyone = sorted((channel, "connection ended") for channel in (0, receiving, sending))
    for events, by_peer in ((pair.at_client(), False), (pair.at_server(), True)):
        assert sorted(ends(events)) == everyone
        assert events[-1] == ConnectionEnded(CloseCode.GOING_AWAY, "shutting down", by_peer)
    assert pair.client.leftovers() == pair.server.leftovers() == []


def test_no_event_follows_the_end_of_a_channel() -> None:
    pair = Pair()
    for mode in Mode:
        channel = pair.give_receiver(mode)
        for _ in range(3):
            pair.client.send(channel, b"x", pair.now)
        pair.run()
        pair.server.take(channel, 2, pair.now)
        pair.client.finish(channel, pair.now)
        pair.wait(0.2)
        pair.server.take(channel, 9, pair.now)
        pair.wait(0.2)
        for events in (pair.at_client(), pair.at_server()):
            about = [event for event in events if getattr(event, "channel", None) == channel]
            assert isinstance(about[-1], SenderEnded | ReceiverEnded)
            assert about[-1].how is End.FINISHED
            assert len([e for e in about if isinstance(e, SenderEnded | ReceiverEnded)]) == 1


def test_an_application_gets_no_events_of_unclaimed_halves() -> None:
    """AQ-CHAN-3: neither while they are queued nor when the queue is dropped."""
    pair = Pair()
    channels = pair.client.send_message(
        ENTRYPOINT, b"", pair.now, attach=[GIVE_RECEIVER, GIVE_SENDER]
    ).channels
    pair.client.send(channels[0], b"x", pair.now)
    pair.wait(0.1)
    pair.server.close(ENTRYPOINT, pair.now)
    pair.wait(0.1)
    assert [event for event in pair.at_server() if event != Readable(ENTRYPOINT)] == []
