"""The numbers of the implementation are those of the specification."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from aqueduct.errors import SettingError
from aqueduct.protocol.config import (
    INITIAL_LIMITS,
    SAFE_DATAGRAM,
    Config,
    Delivery,
    Limits,
    config_of,
)
from aqueduct.protocol.connection import ConnectionCore, Mode
from aqueduct.protocol.events import Delivered, Undelivered
from aqueduct.testing.pair import Pair
from aqueduct.wire.chanid import ENTRYPOINT, Side

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec" / "3-connection.md"
UNITS = {"": 1, "KiB": 1024, "MiB": 1024 * 1024}


def number(cell: str) -> int:
    digits, unit = re.fullmatch(r"([0-9,]+) ?([KM]iB)?", cell.strip()).groups("")  # type: ignore[union-attr]
    return int(digits.replace(",", "")) * UNITS[unit]


def table() -> dict[str, tuple[int, int]]:
    """Return the limits of page 3 by name: initial value and our default."""
    rows = re.findall(r"^\| `([a-z-]+)` \|[^|]*\|([^|]*)\|([^|]*)\|$", PAGE.read_text(), re.M)
    return {name: (number(initial), number(default)) for name, initial, default in rows}


def test_the_limits_are_those_of_the_specification() -> None:
    """AQ-LIMIT-1 and AQ-LIMIT-2: names, initial values and defaults."""
    stated = {field.name.replace("_", "-"): field.name for field in fields(Limits)}
    assert table() == {
        name: (getattr(INITIAL_LIMITS, key), getattr(Limits(), key)) for name, key in stated.items()
    }


def test_the_delays_are_those_of_the_specification() -> None:
    """AQ-ACK-1, AQ-UNREL-1, AQ-UNREL-2 and AQ-FORGET-2."""
    config = Config()
    assert (config.ack_delay, config.ack_every) == (0.010, 64)
    assert config.announce_delay == 0.025
    assert (config.receipt_deadline_min, config.receipt_deadline_max) == (0.050, 1.0)
    assert config.deadline_grain <= 0.005
    assert config.forget_interval == 1.0


def test_a_client_may_use_its_whole_initial_window_before_the_headers() -> None:
    """AQ-CONN-3: the bound leaves room for AQ-LIMIT-2."""
    config = Config()
    overhead = INITIAL_LIMITS.max_channels * 2 * 512
    assert config.max_early_bytes >= INITIAL_LIMITS.connection_window + overhead


def test_the_stream_limit_suffices_for_the_channel_limit() -> None:
    """AQ-LIMIT-5: a live channel costs its peer two streams."""
    assert Config().max_streams >= 2 * Limits().max_channels


def test_the_stream_limit_follows_the_channel_limit() -> None:
    """AQ-LIMIT-5: more channels imply more streams, unless the number of streams is set."""
    many = Limits(max_channels=200_000)
    assert Config(limits=many).max_streams == 400_000
    assert Config(limits=Limits(max_channels=5)).max_streams == Config().max_streams == 131_072
    assert Config(limits=many, max_streams=10).max_streams == 10


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [-1, 2**64, 2**70])
def test_limits_that_do_not_fit_the_wire_are_rejected_with_a_hint(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"Limits\({name}=.*: give a whole number from"):
        Limits(**{name: value})


@pytest.mark.parametrize("value", [1.5, None, "many"])
def test_limits_are_whole_numbers(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):  # the latter where the core is compiled
        Limits(max_channels=value)


@pytest.mark.parametrize("name", ["channel_window", "connection_window", "max_message"])
def test_a_limit_that_allows_no_message_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="from 1 to"):
        Limits(**{name: 0})


def test_limits_may_be_zero_channels_or_headers_and_as_large_as_a_varint() -> None:
    Limits(max_channels=0, max_attachments=0, max_headers=0)
    Limits(*[2**64 - 1] * 6)


def test_the_reserve_follows_the_window_by_default() -> None:
    """AQ-FLOW-10: a window of a MiB or less has none."""
    usual, small = Limits(), Limits(connection_window=1024 * 1024)
    assert (usual.channel_reserve, usual.reserve_window) == (
        16 * 1024,
        usual.connection_window // 2,
    )
    assert (small.channel_reserve, small.reserve_window) == (0, 0)
    given = Limits(connection_window=1_000, channel_reserve=10)
    assert (given.channel_reserve, given.reserve_window) == (10, 500)
    given = Limits(channel_reserve=10, reserve_window=20)
    assert (given.channel_reserve, given.reserve_window) == (10, 20)


def test_the_defaults_of_an_application_are_those_of_a_connection() -> None:
    assert config_of(None, None) == Config()
    assert {field.name for field in fields(Delivery)} < {field.name for field in fields(Config)}


def test_what_an_application_sets_is_what_a_connection_does() -> None:
    delivery = Delivery(
        ack_delay=0.5, receipt_deadline_min=0.2, receipt_deadline_max=3.0, max_datagram=900
    )
    config = config_of(Limits(max_channels=7), delivery)
    assert config.limits.max_channels == 7
    for field in fields(Delivery):
        assert getattr(config, field.name) == getattr(delivery, field.name) != field.default


@pytest.mark.parametrize(
    ("wrong", "allowed"),
    [
        ({"ack_delay": 1.5}, "at most 1"),
        ({"ack_delay": -1}, "0 or more"),
        ({"receipt_deadline_min": 2.0}, r"receipt_deadline_min \(2\) or more"),
        ({"receipt_deadline_max": 61}, "at most 60"),
        ({"max_datagram": 0}, "from 1 to 65,527"),
        ({"max_datagram": 70_000}, "from 1 to 65,527"),
    ],
)
def test_a_value_out_of_bounds_is_refused(wrong: dict[str, Any], allowed: str) -> None:
    with pytest.raises(SettingError, match=allowed):
        Delivery(**wrong)


@pytest.mark.parametrize("ack_delay", [0.0, 0.2, 1.0])
def test_a_receiver_acks_within_its_ack_delay(ack_delay: float) -> None:
    """AQ-ACK-1."""
    pair = Pair(delay=0.01, server=config_of(None, Delivery(ack_delay=ack_delay)))
    pair.run(0.5)
    pair.client.send(ENTRYPOINT, b"x")
    pair.run(ack_delay + 0.019)
    assert not pair.client.events_of(Delivered)
    pair.run(0.002)
    assert pair.client.events_of(Delivered)


@pytest.mark.parametrize("deadline", [0.1, 5.0])
def test_a_receiver_waits_for_datagrams_until_its_receipt_deadline(deadline: float) -> None:
    """AQ-UNREL-2."""
    delivery = Delivery(receipt_deadline_min=deadline, receipt_deadline_max=deadline)
    pair = Pair(delay=0.01, server=config_of(None, delivery))
    pair.run(0.5)
    pair.client.set_mode(ENTRYPOINT, Mode.UNRELIABLE)
    pair.network.faults = replace(pair.network.faults, loss=1.0, recovery=0.0)
    pair.client.send(ENTRYPOINT, b"x")
    pair.flush()
    pair.calm()
    pair.run(deadline)
    assert not pair.client.events_of(Undelivered)
    pair.run(0.1)
    assert pair.client.events_of(Undelivered)


def test_datagrams_are_as_large_as_both_the_path_and_the_application_allow() -> None:
    """AQ-SEND-8."""
    core = ConnectionCore(Side.CLIENT, config_of(None, Delivery(max_datagram=5_000)))
    out = core._context.out
    assert out.max_datagram == SAFE_DATAGRAM
    for path, expected in ((1_422, 1_422), (15_970, 5_000), (1_170, 1_170)):
        core.handle_datagram_limit(path)
        assert out.max_datagram == expected
