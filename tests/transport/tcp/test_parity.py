"""The simulator's runs over the framing of TCP, which must pass the same checks as over QUIC."""

from __future__ import annotations

import os

import pytest

from aqueduct.errors import CloseCode
from aqueduct.testing.record import ConnectionClosed, ConnectionGone
from tests.transport.tapped import TappedRun
from tests.transport.tcp.virtual import VirtualTcp

CHUNK = 25
SEEDS = int(os.environ.get("PARITY_SEEDS", "200"))
"""`make soak` runs more of them."""


def faults_of(seed: int) -> list[str]:
    """Return the checks that a run violates, and what one side accuses the other of."""
    outcome = TappedRun(seed, VirtualTcp).run()
    entries = outcome.record.entries
    blamed = [
        entry.reason
        for entry in entries
        if isinstance(entry, ConnectionClosed | ConnectionGone)
        and entry.code in (CloseCode.PROTOCOL_VIOLATION, CloseCode.LIMIT_EXCEEDED)
    ]
    return blamed + [str(violation) for violation in outcome.violations]


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_no_seed_violates_a_check_over_tcp(start: int) -> None:
    found = {seed: faults_of(seed) for seed in range(start, start + CHUNK)}
    assert {seed: faults[:5] for seed, faults in found.items() if faults} == {}
