"""Core and QUIC together, in virtual time: handshake, writes, resets, closes and failures."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from qh3.quic.events import StopSendingReceived

from aqueduct.errors import CloseCode
from aqueduct.protocol.actions import WriteStream
from aqueduct.protocol.config import Config
from aqueduct.protocol.connection import Attach, ConnectionCore, Give, Mode
from aqueduct.protocol.events import (
    ConnectionEnded,
    Delivered,
    End,
    PeerHeaders,
    ReceiverEnded,
    SenderEnded,
)
from aqueduct.protocol.sender import SendingHalf
from aqueduct.security import ServerTLS
from aqueduct.testing.faults import Faults
from aqueduct.testing.pair import Pair
from aqueduct.testing.record import FrameArrived
from aqueduct.transport.base import MAX_REASON, shortened
from aqueduct.transport.quic.bridge import Bridge
from aqueduct.transport.quic.configuration import server_settings
from aqueduct.transport.quic.costs import Unacknowledged
from aqueduct.transport.quic.tls import EngineConfiguration
from aqueduct.transport.settings import QuicSettings
from aqueduct.wire.chanid import ENTRYPOINT, Side
from aqueduct.wire.frames import MessageFrame
from tests.transport.quic.virtual import NoHandshake, RealQuic
from tests.transport.tapped import DRAIN


def real_pair(
    monkeypatch: pytest.MonkeyPatch,
    seed: int = 0,
    *,
    connected: bool = True,
    faults: Faults | None = None,
) -> Pair:
    monkeypatch.setattr("aqueduct.testing.pair.FakeQuic", RealQuic)
    pair = Pair(seed, faults=faults or Faults())
    pair.record.backlog = DRAIN
    if connected:
        network(pair).shake_hands()
        pair.run(0.5)
    return pair


def network(pair: Pair) -> RealQuic:
    real: object = pair.network
    assert isinstance(real, RealQuic)
    return real


def test_headers_are_exchanged_and_messages_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = real_pair(monkeypatch)
    assert pair.client.events_of(PeerHeaders)
    assert pair.server.events_of(PeerHeaders)
    pair.client.send(ENTRYPOINT, b"hello")
    pair.run(1)
    assert [message.payload for message in pair.server.take(ENTRYPOINT)] == [b"hello"]
    assert pair.client.events_of(Delivered)


@pytest.mark.parametrize("mode", list(Mode))
def test_messages_of_all_modes_arrive(monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    pair = real_pair(monkeypatch, faults=Faults(jitter=0.01))
    pair.client.set_mode(ENTRYPOINT, mode)
    for number in range(200):
        pair.client.send(ENTRYPOINT, b"%d" % number * 50)
        pair.flush()
    pair.client.finish(ENTRYPOINT)
    pair.run(5)
    got = [message.payload for message in pair.server.take(ENTRYPOINT)]
    assert sorted(got) == sorted(b"%d" % number * 50 for number in range(200))
    pair.run(5)
    assert pair.client.events_of(SenderEnded)[0].how is End.FINISHED


@pytest.mark.parametrize("where", ["datagrams_to_send", "receive_joined", "handle_timer"])
def test_a_fault_of_quic_ends_both_sides_at_once(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """AQ-CODE-4."""
    pair = real_pair(monkeypatch)
    bridge = network(pair).bridges[Side.CLIENT]
    assert bridge is not None
    faults = iter([ValueError("a fault")])
    whole = getattr(bridge.quic, where)

    def fail_once(*arguments: object, **options: object) -> object:
        for fault in faults:
            raise fault
        return whole(*arguments, **options)

    monkeypatch.setattr(bridge.quic, where, fail_once)
    pair.client.send(ENTRYPOINT, b"x")
    pair.run(1)
    network(pair)._after_input(Side.CLIENT)  # a driver polls its bridge again after a failure
    (client,) = pair.client.events_of(ConnectionEnded)
    (server,) = pair.server.events_of(ConnectionEnded)
    assert (client.code, client.by_peer) == (CloseCode.TRANSPORT, False)
    assert (server.code, server.by_peer) == (CloseCode.TRANSPORT, True)
    assert client.reason == server.reason == "QUIC failed: a fault"


def test_a_connection_ends_even_if_quic_fails_to_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = real_pair(monkeypatch)
    bridge = network(pair).bridges[Side.CLIENT]
    assert bridge is not None

    def fail(*arguments: object, **named: object) -> None:
        raise ValueError("a fault")

    for name in ("datagrams_to_send", "close"):
        monkeypatch.setattr(bridge.quic, name, fail)
    pair.client.send(ENTRYPOINT, b"x")
    pair.run(1)
    network(pair)._after_input(Side.CLIENT)
    assert pair.client.events_of(ConnectionEnded)
    assert bridge.flush(2.0) == []


def test_a_cancel_resets_streams_and_reaches_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = real_pair(monkeypatch)
    pair.client.send(ENTRYPOINT, b"x" * 1_000)
    pair.run(1)
    pair.client.cancel(ENTRYPOINT)
    pair.run(1)
    assert pair.server.events_of(ReceiverEnded)[0].how is End.CANCELLED
    pair.run(1)
    assert pair.client.events_of(SenderEnded)[0].how is End.CANCELLED
    assert pair.leftovers() == []


def test_more_than_a_congestion_window_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = real_pair(monkeypatch)
    sent = pair.client.send_message(ENTRYPOINT, b"", attach=[Attach(Give.RECEIVER)])
    (channel,) = sent.channels
    pair.run(1)
    pair.server.take(ENTRYPOINT)
    for _ in range(50):
        pair.client.send(channel, b"x" * 10_000)
    total = 0
    for _ in range(200):
        pair.run(0.05)
        total += sum(len(message.payload) for message in pair.server.take(channel))
    assert total == 500_000


def test_a_close_arrives_after_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = real_pair(monkeypatch)
    for number in range(100):
        pair.client.send(ENTRYPOINT, b"%d" % number * 100)
    pair.client.close_connection(CloseCode.NO_ERROR, "goodbye")
    taken: list[bytes] = []
    pair.on_input = lambda side: taken.extend(
        message.payload for message in pair.server.take(ENTRYPOINT)
    )
    pair.run(3)
    assert len(taken) == 100
    (ended,) = pair.server.events_of(ConnectionEnded)
    assert (ended.code, ended.reason, ended.by_peer) == (CloseCode.NO_ERROR, "goodbye", True)


@pytest.mark.parametrize("side", list(Side))
def test_the_end_is_reported_at_once_and_later_writes_are_ignored(
    monkeypatch: pytest.MonkeyPatch, side: Side
) -> None:
    pair = real_pair(monkeypatch)
    closer, other = pair.endpoints[side], pair.endpoints[side.other]
    closer.close_connection(CloseCode.INTERNAL, "broken")
    pair.run(0.05)
    (ended,) = other.events_of(ConnectionEnded)
    assert (ended.code, ended.reason, ended.by_peer) == (CloseCode.INTERNAL, "broken", True)
    pair.run(10)
    assert len(other.events_of(ConnectionEnded)) == 1


def test_the_end_is_reported_to_a_side_that_is_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = real_pair(monkeypatch)
    pair.server.close_connection(CloseCode.GOING_AWAY, "bye")
    for _ in range(100):
        if pair.client.events_of(ConnectionEnded):
            break
        pair.client.send(ENTRYPOINT, b"x" * 500)
        pair.run(0.001)
    assert pair.client.events_of(ConnectionEnded)[0].by_peer
    assert pair.client.events_of(SenderEnded)[0].how is End.CONNECTION


def test_a_channel_can_be_cancelled_before_the_handshake_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = real_pair(monkeypatch, connected=False)
    pair.client.send(ENTRYPOINT, b"x" * 100)
    pair.flush()
    pair.client.cancel(ENTRYPOINT)
    pair.flush()
    network(pair).shake_hands()
    pair.run(2)
    assert pair.client.events_of(SenderEnded)[0].how is End.CANCELLED


def test_a_connection_can_be_closed_before_the_handshake_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = real_pair(monkeypatch, connected=False)
    pair.client.close_connection(CloseCode.NO_ERROR, "changed my mind")
    pair.run(5)
    assert pair.client.events_of(ConnectionEnded)


def outcome_of_handshake(monkeypatch: pytest.MonkeyPatch, seed: int, loss: float) -> str:
    faults = Faults(loss=loss, delay=0.02, jitter=0.005)
    pair = real_pair(monkeypatch, seed, connected=False, faults=faults)
    try:
        network(pair).shake_hands()
    except NoHandshake as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("loss", "allowed"), [(0.02, 0), (0.05, 0), (0.1, 1), (0.2, 2)])
def test_a_handshake_survives_loss(
    monkeypatch: pytest.MonkeyPatch, loss: float, allowed: int
) -> None:
    """Of a hundred; `connect` retries the few that qh3 cannot complete."""
    outcomes = [outcome_of_handshake(monkeypatch, seed, loss) for seed in range(100)]
    assert len([text for text in outcomes if text]) <= allowed


def test_joined_packets_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.transport.quic.virtual.PACKET_SIZES", (1_200,))
    pair = real_pair(monkeypatch)
    real = network(pair)
    client, server = real.bridges
    assert client is not None
    assert server is not None
    for number in range(300):
        pair.client.send(ENTRYPOINT, b"%d" % number * 100)
    pair.client.gather()
    packets = []
    for turn in range(20):
        now = pair.now + 0.001 * turn
        packets += [data for data, _ in client.flush(now)]
    size = max(map(len, packets))
    run = [data for data in packets if len(data) == size]
    assert len(run) > 1
    server.receive(b"".join(run), size, ("127.0.0.1", 1111), now)
    for data in packets:
        server.receive(data, len(data), ("127.0.0.1", 1111), now)
    pair.run(3)
    assert len(pair.server.take(ENTRYPOINT)) == 300


def test_statistics_count_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = real_pair(monkeypatch)
    client, _ = network(pair).bridges
    assert client is not None
    pair.client.send(ENTRYPOINT, b"x")
    pair.run(1)
    assert client.statistics()["streams"] == 1
    assert client.statistics()["send_buffer"] == 0


def test_messages_that_arrived_before_quic_failed_can_be_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = real_pair(monkeypatch)
    bridge = network(pair).bridges[Side.SERVER]
    assert bridge is not None
    pair.client.send(ENTRYPOINT, b"acked")
    pair.run(1)
    assert pair.client.events_of(Delivered)
    rescued: list[bytes] = []
    bridge.before_end = lambda: rescued.extend(
        message.payload for message in pair.server.take(ENTRYPOINT)
    )

    def fail(*arguments: object, **named: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(bridge.quic, "receive_joined", fail)
    pair.client.send(ENTRYPOINT, b"too late")
    pair.run(1)
    assert bridge.ended
    assert rescued == [b"acked"]


def test_a_long_reason_is_shortened_to_fit_a_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = real_pair(monkeypatch)
    pair.server.close_connection(CloseCode.NO_ERROR, "ü" * 5_000)
    pair.run(1)
    (ended,) = pair.client.events_of(ConnectionEnded)
    assert ended.reason.startswith("üüü")
    assert len(ended.reason.encode()) <= MAX_REASON
    assert shortened("as it is") == "as it is"


def test_streams_that_the_peer_stopped_are_not_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = real_pair(monkeypatch)
    bridge = network(pair).bridges[Side.CLIENT]
    assert bridge is not None
    pair.client.send(ENTRYPOINT, b"first")
    pair.run(1)
    (stream,) = bridge._streams.values()
    for unknown in range(10_000):  # the peer may stop any number of streams; few are remembered
        bridge._handle_rare(StopSendingReceived(1, 4 * unknown + 2), pair.now)
    bridge._handle_rare(StopSendingReceived(1, stream), pair.now)
    assert len(bridge._stopped) < 200
    written: list[int] = []
    monkeypatch.setattr(bridge.quic, "send_stream_data", lambda number, *_: written.append(number))
    pair.client.send(ENTRYPOINT, b"second")
    pair.run(1)
    assert stream not in written


def limit_streams(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Have the server allow few concurrent streams."""

    def settings(tls: ServerTLS, options: QuicSettings) -> EngineConfiguration:
        return replace(server_settings(tls, options), max_streams=limit)

    monkeypatch.setattr("tests.transport.quic.virtual.server_settings", settings)


def open_senders(pair: Pair, mode: Mode, count: int) -> list[int]:
    attach = [Attach(Give.RECEIVER, mode=mode)] * count
    channels = pair.client.send_message(ENTRYPOINT, b"", attach=attach).channels
    pair.run(1)
    pair.server.take(ENTRYPOINT)
    return list(channels)


def test_messages_wait_for_stream_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """AQ-STREAM-9."""
    limit_streams(monkeypatch, 40)
    pair = real_pair(monkeypatch)
    channels = open_senders(pair, Mode.UNORDERED, 4)
    for number in range(250):
        for channel in channels:
            pair.client.send(channel, b"%d" % number)
    for channel in channels:
        pair.client.finish(channel)
    got: dict[int, set[bytes]] = {channel: set() for channel in channels}
    for _ in range(200):
        pair.run(0.05)
        for channel in channels:
            got[channel] |= {message.payload for message in pair.server.take(channel)}
    assert not pair.client.events_of(ConnectionEnded)
    assert [len(payloads) for payloads in got.values()] == [250] * 4
    ended = {event.channel: event.how for event in pair.client.events_of(SenderEnded)}
    assert ended == dict.fromkeys(channels, End.FINISHED)
    assert not bridge_of(pair)._has_output()


def test_messages_leave_stream_credit_to_control_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """AQ-STREAM-9: channels that wait for credit can be cancelled, and answers acked."""
    limit_streams(monkeypatch, 40)
    pair = real_pair(monkeypatch)
    channels = open_senders(pair, Mode.ORDERED, 100)
    for channel in channels:
        pair.client.send(channel, b"x")
    asked = pair.client.send_message(ENTRYPOINT, b"", attach=[Attach(Give.SENDER)])
    (answers,) = asked.channels
    pair.run(1)
    pair.server.take(ENTRYPOINT)
    bridge = bridge_of(pair)
    assert len(bridge.core.output._unopened_flows) > 50
    pair.server.send(answers, b"yes")
    pair.run(1)
    assert pair.server.events_of(Delivered)
    for channel in channels[50:]:
        pair.client.cancel(channel)
    for channel in channels[:50]:
        pair.client.finish(channel)
    for _ in range(100):
        pair.run(0.05)
        for channel in channels:
            pair.server.take(channel)
    assert not pair.client.events_of(ConnectionEnded)
    ended = {event.channel: event.how for event in pair.client.events_of(SenderEnded)}
    assert [ended[channel] for channel in channels] == [End.FINISHED] * 50 + [End.CANCELLED] * 50
    assert not bridge._has_output()


def test_a_flush_leaves_the_rest_of_a_flood_to_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy connection must not delay the others."""
    pair = real_pair(monkeypatch)
    (channel,) = open_senders(pair, Mode.UNORDERED, 1)
    bridge = bridge_of(pair)
    monkeypatch.setattr("aqueduct.transport.quic.bridge._PACKETS", 2)
    monkeypatch.setattr("aqueduct.transport.quic.room.PIECES", 16)
    for number in range(500):
        pair.client.send(channel, b"%d" % number)
    now = pair.clock.now
    flushes = 0
    while True:
        bridge.flush(now)
        flushes += 1
        if not bridge.has_more:
            break
        assert bridge.next_timer() == now
    assert flushes > 3
    assert not bridge._has_output() or bridge._unsent


def bridge_of(pair: Pair) -> Bridge:
    bridge = network(pair).bridges[Side.CLIENT]
    assert bridge is not None
    return bridge


def steps_to_reset(monkeypatch: pytest.MonkeyPatch, count: int) -> int:
    """Return how many lines of the bridge run when ``count`` streams with unsent data are reset."""
    pair = real_pair(monkeypatch)
    (channel,) = open_senders(pair, Mode.UNORDERED, 1)
    for _ in range(count):
        pair.client.send(channel, b"x" * 100)
    pair.flush()
    bridge = bridge_of(pair)
    assert bridge.core.output.size > 50 * count
    steps = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        if not frame.f_code.co_filename.endswith(("bridge.py", "outgoing.py", "priorities.py")):
            return None
        steps += 1
        return trace

    pair.client.cancel(channel)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        pair.flush()
    finally:
        sys.settrace(before)
    for _ in range(100):
        pair.run(0.1)
    assert pair.client.events_of(SenderEnded)[0].how is End.CANCELLED
    assert not bridge._has_output()
    return steps


def test_resetting_many_streams_takes_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (steps_to_reset(monkeypatch, count) for count in (500, 4_000))
    assert many < 12 * few


def test_a_cancel_resets_unordered_messages_that_quic_has_sent_and_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-CANCEL-1: QUIC does not retransmit them."""
    pair = real_pair(monkeypatch)
    (channel,) = open_senders(pair, Mode.UNORDERED, 1)
    pair.client.send(channel, b"acknowledged")
    pair.run(1)
    network(pair).faults = Faults(delay=0.01, loss=1.0)
    for _ in range(3):
        pair.client.send(channel, b"lost")
    pair.flush()
    assert not bridge_of(pair)._has_output()
    network(pair).faults = Faults(delay=0.01)
    pair.client.cancel(channel)
    pair.run(3)
    assert pair.client.events_of(SenderEnded)[0].how is End.CANCELLED
    arrived = [
        entry.sent.frame.payload
        for entry in pair.record.entries
        if isinstance(entry, FrameArrived)
        and isinstance(entry.sent.frame, MessageFrame)
        and entry.sent.channel == channel
    ]
    assert arrived == [b"acknowledged"]
    pair.client.send(ENTRYPOINT, b"the connection continues")
    pair.run(1)
    assert [message.payload for message in pair.server.take(ENTRYPOINT)][-1] == (
        b"the connection continues"
    )


def test_a_reset_of_an_acknowledged_stream_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-CANCEL-1: the message had arrived, and only its ack is under way."""
    pair = real_pair(monkeypatch)
    (channel,) = open_senders(pair, Mode.UNORDERED, 1)
    pair.client.send(channel, b"x")
    pair.run(1)
    bridge = bridge_of(pair)
    stream = max(network(pair)._numbers[Side.CLIENT])
    assert not bridge.quic.reset_if_open(stream, 0x10)
    pair.client.send(channel, b"y")
    pair.run(1)
    assert [message.payload for message in pair.server.take(channel)] == [b"x", b"y"]


def test_a_cancel_resets_every_unordered_message_that_was_not_acked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-CANCEL-1: also the oldest, which QUIC retransmits while it sends and forgets others."""
    pair = real_pair(monkeypatch)
    (channel,) = open_senders(pair, Mode.UNORDERED, 1)
    network(pair).faults = Faults(delay=0.02, loss=0.01)
    bridge, core = bridge_of(pair), pair.client.core
    assert isinstance(core, ConnectionCore)
    missing = most = 0
    for _ in range(300):
        for _ in range(10):
            pair.client.send(channel, b"x" * 200)
        pair.run(0.005)
        pair.server.take(channel)
        half = core._channels.halves[channel]
        assert isinstance(half, SendingHalf)
        assert half._singles
        written = {one.number for one in half._singles.values() if one.opened}
        missing += len(written - set(bridge._streams) - set(bridge._sent._streams))
        most = max(most, len(bridge._sent))
    assert missing == 0
    assert most < 1_000
    pair.client.cancel(channel)
    assert not core.output.unacked
    pair.run(1)
    assert pair.client.events_of(SenderEnded)[0].how is End.CANCELLED


def test_finished_streams_are_remembered_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = real_pair(monkeypatch)
    (channel,) = open_senders(pair, Mode.UNORDERED, 1)
    bridge = bridge_of(pair)
    most = 0
    for _ in range(100):
        for _ in range(20):
            pair.client.send(channel, b"x")
        pair.run(0.05)
        pair.server.take(channel)
        most = max(most, len(bridge._sent))
    assert 20 < most <= 200
    assert bridge.quic.core is not None


def test_what_waits_of_a_cancelled_channel_is_dropped_and_the_others_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = real_pair(monkeypatch)
    kept, given_up = open_senders(pair, Mode.UNORDERED, 2)
    for _ in range(100):
        pair.client.send(given_up, b"x" * 1_000)
        pair.client.send(kept, b"x" * 1_000)
    pair.flush()
    waited = bridge_of(pair).core.output.size
    pair.client.cancel(given_up)
    pair.flush()
    assert bridge_of(pair).core.output.size < waited - 25_000
    got = 0
    for _ in range(100):
        pair.run(0.05)
        got += len(pair.server.take(kept))
    assert got == 100


# -- costs ----------------------------------------------------------------------------------------


def test_a_client_opens_few_streams_before_the_headers_and_the_rest_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-COST-1."""
    monkeypatch.setattr("aqueduct.transport.stream_credit.MAX_EARLY_STREAMS", 10)
    pair = real_pair(monkeypatch, connected=False)
    bridge = network(pair).bridges[Side.CLIENT]
    assert bridge is not None
    pair.client.set_mode(ENTRYPOINT, Mode.UNORDERED)
    for number in range(50):
        pair.client.send(ENTRYPOINT, b"%d" % number)
    most = 0
    opened = bridge._send_stream

    def count(write: WriteStream) -> None:
        nonlocal most
        if not bridge.core.is_ready:
            most = max(most, write.stream + 1)
        opened(write)

    monkeypatch.setattr(bridge, "_send_stream", count)
    network(pair).shake_hands()
    pair.run(2)
    assert most == 10
    assert len(pair.server.take(ENTRYPOINT)) == 50


def test_a_side_that_waits_for_acknowledgements_continues_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-COST-2: it does not get stuck."""
    monkeypatch.setattr("aqueduct.transport.quic.costs.COUNT_AFTER", 50)
    small = functools.partial(Config, max_unacknowledged=800)
    monkeypatch.setattr("aqueduct.testing.pair.Config", small)
    pair = real_pair(monkeypatch, faults=Faults(delay=0.05))
    waits = 0
    look = Unacknowledged.recount

    def count(self: Unacknowledged, now: float) -> None:
        nonlocal waits
        waits += 1
        look(self, now)

    monkeypatch.setattr(Unacknowledged, "recount", count)
    pair.client.set_mode(ENTRYPOINT, Mode.UNORDERED)
    for number in range(2_000):
        pair.client.send(ENTRYPOINT, b"%d" % number)
    pair.run(10)
    assert len(pair.server.take(ENTRYPOINT)) == 2_000
    assert waits
    assert not pair.client.events_of(ConnectionEnded)


def test_quic_holds_little_unsent_data_even_if_another_timer_hides_the_pacer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A probe takes time quadratic in the streams with unsent data, and blocks the event loop."""
    monkeypatch.setattr("tests.transport.quic.virtual.PACKET_SIZES", (1_452,))
    pair = real_pair(monkeypatch, faults=Faults(delay=0.1))
    bridge = network(pair).bridges[Side.CLIENT]
    assert bridge is not None
    most = 0
    poll = bridge._poll

    def look(now: float) -> list[tuple[bytes, Any]]:
        nonlocal most
        packets = poll(now)
        most = max(most, bridge.quic.get_send_buffer_size())
        return packets

    monkeypatch.setattr(bridge, "_poll", look)
    pair.client.set_mode(ENTRYPOINT, Mode.UNORDERED)
    for number in range(8_000):
        pair.client.send(ENTRYPOINT, b"%08d" % number)
        if number % 50 == 0:
            pair.run(0.001)
    pair.run(10)
    assert len(pair.server.take(ENTRYPOINT)) == 8_000
    assert most < 16_384, "256 writes at a time, of some 15 bytes each"


def test_a_stream_that_waits_for_credit_does_not_count_as_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AQ-COST-1 beside AQ-STREAM-9."""
    limit_streams(monkeypatch, 40)
    pair = real_pair(monkeypatch)
    (channel,) = open_senders(pair, Mode.UNORDERED, 1)
    bridge = bridge_of(pair)
    monkeypatch.setattr("tests.transport.tapped.TappedCore.is_ready", False)
    bridge._is_early = True
    quic = bridge.quic
    before = quic.get_next_available_stream_id(is_unidirectional=True) >> 2
    for number in range(250):
        pair.client.send(channel, b"%d" % number)
    pair.run(1)
    opened = (quic.get_next_available_stream_id(is_unidirectional=True) >> 2) - before
    assert bridge._meter.credit.opened == before + opened
    assert opened > 40


@pytest.mark.parametrize("what", ["resets", "messages"])
def test_a_side_that_must_not_send_counts_again_whatever_is_queued(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """AQ-COST-2."""
    pair = real_pair(monkeypatch)
    bridge = bridge_of(pair)
    bridge._unacknowledged.is_full, bridge._unacknowledged.recount_at = True, pair.now + 0.1
    if what == "resets":
        bridge._resets.append((2, 0))
    else:
        pair.client.core.send(ENTRYPOINT, b"x", pair.now)
    timer = bridge.next_timer()
    assert timer is not None
    assert timer <= pair.now + 0.1
