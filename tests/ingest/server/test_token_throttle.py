"""Wrong tokens: slowed down by address, counted, and logged without the token."""

from __future__ import annotations

import logging

import pytest

from aqueduct.api.server import Refuse
from aqueduct.ingest.server import token_throttle
from aqueduct.ingest.server.token_throttle import (
    FIRST_PAUSE,
    FREE,
    LAST_PAUSE,
    LONGEST,
    TokenThrottle,
    network_of,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fail(throttle: TokenThrottle, count: int, host: str = "192.0.2.1") -> None:
    for _ in range(count):
        throttle.record_invalid(host, has_token=True)


def test_a_few_wrong_tokens_cost_nothing(clock: Clock) -> None:
    throttle = TokenThrottle(clock)
    assert throttle.pause("192.0.2.1") == 0
    fail(throttle, FREE - 1)
    assert throttle.pause("192.0.2.1") == 0


def test_each_failure_doubles_the_delay_for_its_address_only(clock: Clock) -> None:
    throttle = TokenThrottle(clock)
    fail(throttle, FREE)
    pauses = []
    for _ in range(8):
        pause = throttle.pause("192.0.2.1")
        pauses.append(pause)
        clock.now += pause
        fail(throttle, 1)
        assert throttle.pause("192.0.2.2") == 0
    assert pauses[0] == pytest.approx(FIRST_PAUSE)
    assert pauses[1] == pytest.approx(2 * FIRST_PAUSE, rel=0.1)
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_PAUSE


def test_attempts_of_one_address_queue_up_to_a_limit(clock: Clock) -> None:
    throttle = TokenThrottle(clock)
    fail(throttle, FREE + 10)
    waits = [throttle.pause("192.0.2.1") for _ in range(int(LONGEST / LAST_PAUSE))]
    assert waits == [LAST_PAUSE * (number + 1) for number in range(len(waits))]
    with pytest.raises(Refuse, match=r"too many wrong tokens came from this address; correct the"):
        throttle.pause("192.0.2.1")
    assert throttle.turned_away == 1


def test_valid_tokens_are_remembered_by_address_up_to_a_limit(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_throttle, "MAX_ADDRESSES", 3)
    throttle = TokenThrottle(clock)
    for number in range(4):
        throttle.record_valid(f"192.0.2.{number}", b"digest")
    assert [throttle.was_valid(f"192.0.2.{number}", b"digest") for number in range(5)] == [
        False, True, True, True, False,
    ]  # fmt: skip
    assert not throttle.was_valid("192.0.2.1", b"another")


def test_the_delay_expires(clock: Clock) -> None:
    throttle = TokenThrottle(clock)
    fail(throttle, FREE)
    assert throttle.pause("192.0.2.1") > 0
    clock.now += 2 * token_throttle.FORGIVEN
    assert throttle.pause("192.0.2.1") == 0


def test_the_address_table_is_bounded_and_evicts_idle_addresses(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_throttle, "MAX_ADDRESSES", 10)
    throttle = TokenThrottle(clock)
    for number in range(100):
        fail(throttle, 1, f"192.0.2.{number}")
        fail(throttle, 1, "198.51.100.7")
    assert len(throttle) == 10
    assert throttle.pause("198.51.100.7") > 0
    assert throttle.refused == 200


def test_one_client_cannot_pose_as_many_with_ipv6_addresses() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::"
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == "fe80::"
    assert network_of("not an address") == "not an address"


def test_failures_are_logged_at_decreasing_frequency(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    throttle = TokenThrottle(clock)
    with caplog.at_level(logging.WARNING):
        fail(throttle, 1_000)
        throttle.record_invalid("192.0.2.2", has_token=False)
    assert len(caplog.records) == 10
    assert "rejected a client at 192.0.2.1: it sent a wrong token (1 from" in caplog.text
    clock.now += 5
    throttle.record_invalid("192.0.2.3", has_token=False)
    assert "at 192.0.2.3: it sent no token (1 from this address so far; 1 such" in (caplog.text)
    for number in range(4, 200):
        fail(throttle, 1, f"192.0.2.{number}")
    assert len(caplog.records) < 20
