"""A run without faults, for tests to inspect and to modify."""

from __future__ import annotations

from aqueduct.ipc.core.settings import IpcSettings
from aqueduct.testing.faults import CALM, Faults
from aqueduct.testing.ipc.plan import IpcPlan
from aqueduct.testing.ipc.simulation import IpcSimulation

CONFIG = IpcSettings(
    max_pdu=600,
    owner_id_lifetime=1.0,
    receive_timeout=1.0,
    ack_timeout=1.0,
    min_backoff=0.1,
    max_backoff=0.2,
    id_trust=0.5,
)
PLAN = IpcPlan(
    unit=1.0,
    duration=1.0,
    turn=0.2,
    messages=6,
    burst=1,
    weights=(("send", 1.0),),
    pdus=3,
    cancel=0.0,
    eager=1.0,
    take_delay=0.0,
    refuse=0.0,
    crash_after_take=0.0,
    pause=0.1,
    garbage=0.0,
    hoard=0.0,
    deaf=(),
    report_delay=0.0,
    report_fails=0.0,
    configs=(CONFIG, CONFIG),
    reports_sent=(False, False),
)


def quiet_run(plan: IpcPlan = PLAN, faults: Faults = CALM) -> IpcSimulation:
    """Two endpoints, a few messages of some PDUs, and a network without faults."""
    return IpcSimulation(7, plan=plan, faults=faults)
