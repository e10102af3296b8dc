"""The simulator's runs over real QUIC: what the fake one promises, the real one keeps."""

from __future__ import annotations

import os

import pytest

from aqueduct.testing.faults import Faults
from aqueduct.testing.record import ConnectionLost, FrameArrived, FrameSent, StreamEnded
from tests.processes.peers import QUIC_FAULT
from tests.quic.virtual import Parity

CHUNK = 25
SEEDS = int(os.environ.get("PARITY_SEEDS", "200"))
"""`make soak` runs more of them."""


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_a_promise_over_real_quic(start: int) -> None:
    broken = {}
    for seed in range(start, start + CHUNK):
        violations = Parity(seed).run().violations
        if violations:
            broken[seed] = [str(violation) for violation in violations][:5]
    assert broken == {}


def test_quic_itself_fails_in_one_way_only_and_in_few_runs() -> None:
    """With much loss both ways qh3 may lose a stream it still has to send."""
    failed = []
    for seed in range(SEEDS):
        entries = Parity(seed).run().record.entries
        losses = [entry for entry in entries if isinstance(entry, ConnectionLost)]
        faults = [loss for loss in losses if loss.reason.startswith("QUIC failed")]
        if faults:
            failed.append(seed)
            assert {loss.reason for loss in faults} == {f"QUIC failed: {QUIC_FAULT}"}
            assert [loss.by_peer for loss in faults] in ([False], [False, True])
    assert len(failed) <= SEEDS // 40


def test_on_a_good_network_every_frame_arrives_but_those_taken_back() -> None:
    parity = Parity(3)
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
    assert outcome.messages > 50
    assert len(sent) > 100
    assert parity.network.packets_lost == before


def test_the_same_seed_gives_the_same_run_up_to_what_encryption_decides() -> None:
    first, second = Parity(5), Parity(5)
    outcomes = first.run(), second.run()
    assert outcomes[0].messages == outcomes[1].messages
    assert outcomes[0].channels == outcomes[1].channels
