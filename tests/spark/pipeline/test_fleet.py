"""Simulated devices: rates, numbers and late readings."""

from __future__ import annotations

from collections import Counter

import pytest

from aqueduct.spark.pipeline.fleet import (
    HOLD,
    MODES,
    SHARES,
    STALE_AFTER,
    STALE_AGE,
    Device,
    DeviceReading,
    make_fleet,
)

NOW = 1_700_000_000.0


def run(device: Device, seconds: float, tick: float = 0.02) -> list[DeviceReading]:
    sent: list[DeviceReading] = []
    for at in range(1, int(seconds / tick) + 1):
        sent += device.due(at * tick, NOW + at * tick)
    return [*sent, *device.release(NOW + seconds)]


@pytest.mark.parametrize("index", range(6))
def test_a_device_sends_at_its_rate_in_each_mode(index: int) -> None:
    counts = Counter(reading.mode for reading in run(Device(index, 100.0), 10.0))
    for mode in MODES:
        assert abs(counts[mode] - 1_000 * SHARES[mode]) <= 2


@pytest.mark.parametrize("index", range(6))
def test_numbers_are_unique_and_dense(index: int) -> None:
    sent = run(Device(index, 50.0), 7.0)
    for mode in MODES:
        numbers = sorted(reading.number for reading in sent if reading.mode == mode)
        assert numbers == list(range(1, len(numbers) + 1))


def test_the_same_seed_gives_the_same_readings() -> None:
    assert run(Device(3, 50.0, seed=9), 5.0) == run(Device(3, 50.0, seed=9), 5.0)
    assert run(Device(3, 50.0, seed=9), 5.0) != run(Device(3, 50.0, seed=8), 5.0)


def test_a_buffering_device_sends_late() -> None:
    late = [reading for reading in run(Device(1, 100.0), 10.0) if reading.late == "buffered"]
    assert len(late) > 400
    ages = [(reading.sent - (reading.event or 0)) / 1e6 for reading in late]
    assert max(ages) > HOLD - 0.1
    assert max(ages) < HOLD + 0.1


def test_some_devices_send_stale_readings_after_a_while() -> None:
    sent = run(Device(2, 200.0), 10.0)
    stale = [reading for reading in sent if reading.late == "stale"]
    assert stale
    assert all(reading.sent - (reading.event or 0) == STALE_AGE * 1e6 for reading in stale)
    assert all(reading.sent >= (NOW + STALE_AFTER) * 1e6 for reading in stale)
    assert not [one for one in run(Device(0, 200.0), 10.0) if one.late]


def test_a_blocked_device_limits_its_burst() -> None:
    device = Device(0, 100.0)
    assert len(list(device.due(60.0, NOW))) <= 101
    assert not list(device.due(60.0, NOW))


def test_devices_share_the_rate_of_the_fleet() -> None:
    fleet = make_fleet(8, 400.0, 1)
    assert sum(device.rate for device in fleet) == 400.0
    assert len({device.name for device in fleet}) == 8
