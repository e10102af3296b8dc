"""The simulator's runs over real QUIC, which must pass the same checks as over the fake one."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from aqueduct.errors import CloseCode
from aqueduct.protocol.actions import Room
from aqueduct.protocol.config import Config
from aqueduct.protocol.outgoing import Outgoing
from aqueduct.testing.faults import Faults
from aqueduct.testing.record import ConnectionGone, FrameArrived, FrameSent, StreamEnded
from aqueduct.transport.quic.room import RoomMeter
from tests.transport.quic.virtual import Parity, RealQuic, ScarceStreams

CHUNK = 25
SEEDS = int(os.environ.get("PARITY_SEEDS", "200"))
"""`make soak` runs more of them."""
EARLY_STREAMS = 8


def faults_found(seed: int, quic: type[RealQuic]) -> list[str]:
    """Return the checks that a run violates, and the faults of QUIC that end it."""
    outcome = Parity(seed, quic).run()
    losses = [entry for entry in outcome.record.entries if isinstance(entry, ConnectionGone)]
    failures = [loss.reason for loss in losses if loss.code == CloseCode.TRANSPORT]
    return failures + [str(violation) for violation in outcome.violations]


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_no_seed_violates_a_check_over_real_quic(start: int) -> None:
    """Nor does QUIC itself fail."""
    found = {seed: faults_found(seed, RealQuic) for seed in range(start, start + CHUNK)}
    assert {seed: faults[:5] for seed, faults in found.items() if faults} == {}


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_no_seed_violates_a_check_with_few_streams(start: int) -> None:
    """AQ-STREAM-9."""
    found = {seed: faults_found(seed, ScarceStreams) for seed in range(start, start + CHUNK)}
    assert {seed: faults for seed, faults in found.items() if faults} == {}


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_no_seed_opens_too_many_streams_before_the_headers(
    start: int, few_early_streams: None
) -> None:
    """AQ-COST-1: a client with more streams waits for acceptance."""
    found = {seed: faults_found(seed, RealQuic) for seed in range(start, start + CHUNK)}
    assert {seed: faults for seed, faults in found.items() if faults} == {}


def opens_any_stream(monkeypatch: pytest.MonkeyPatch) -> type[RealQuic]:
    measure = RoomMeter.measure

    def without_streams(self: RoomMeter, room: Room, *, is_early: bool) -> None:
        measure(self, room, is_early=is_early)
        room.streams = room.message_streams = 1_000

    monkeypatch.setattr(RoomMeter, "measure", without_streams)
    return ScarceStreams


def ignores_new_stream_credit(monkeypatch: pytest.MonkeyPatch) -> type[RealQuic]:
    monkeypatch.setattr(Outgoing, "_retry_unopened", lambda *_: None)
    return ScarceStreams


def opens_early_streams_without_limit(monkeypatch: pytest.MonkeyPatch) -> type[RealQuic]:
    measure = RoomMeter.measure

    def as_if_ready(self: RoomMeter, room: Room, *, is_early: bool) -> None:
        measure(self, room, is_early=False)

    monkeypatch.setattr(RoomMeter, "measure", as_if_ready)
    return RealQuic


@pytest.mark.parametrize(
    "plant",
    [
        opens_any_stream,
        ignores_new_stream_credit,
        opens_early_streams_without_limit,
    ],
)
def test_a_planted_fault_of_the_stream_limits_is_found(
    plant: Callable[[pytest.MonkeyPatch], type[RealQuic]],
    monkeypatch: pytest.MonkeyPatch,
    few_early_streams: None,
) -> None:
    """AQ-STREAM-9 and AQ-COST-1."""
    quic = plant(monkeypatch)
    assert any(faults_found(seed, quic) for seed in range(400))


@pytest.fixture
def few_early_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the number of streams before acceptance, so that runs reach the bound."""
    monkeypatch.setattr("aqueduct.transport.stream_credit.MAX_EARLY_STREAMS", EARLY_STREAMS)
    initialise = Config.__init__

    def with_few(self: Config, *args: object, **changed: object) -> None:
        initialise(self, *args, **{"max_early_streams": EARLY_STREAMS, **changed})  # type: ignore[arg-type]

    monkeypatch.setattr(Config, "__init__", with_few)


def test_without_packet_loss_every_frame_arrives_unless_its_stream_was_reset() -> None:
    parity = Parity(12)
    parity.network.faults = Faults()
    before = parity.network.packets_lost
    outcome = parity.run()
    entries = outcome.record.entries
    ended = [entry for entry in entries if isinstance(entry, StreamEnded)]
    taken_back = {(each.side, each.stream) for each in ended if each.reset is not None}
    sent = [entry for entry in entries if isinstance(entry, FrameSent)]
    arrived = {id(entry.sent) for entry in entries if isinstance(entry, FrameArrived)}
    missing = [
        each
        for each in sent
        if (each.side, each.stream) not in taken_back and id(each) not in arrived
    ]
    assert missing == []
    assert outcome.violations == []
    assert outcome.counts["messages"] > 50
    assert len(sent) > 100
    assert parity.network.packets_lost == before


def test_the_same_seed_gives_the_same_run_up_to_encryption() -> None:
    first, second = Parity(5), Parity(5)
    outcomes = first.run(), second.run()
    assert outcomes[0].counts == outcomes[1].counts
