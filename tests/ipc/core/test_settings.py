"""The limits and delays of an endpoint, and their validation."""

from typing import Any

import pytest

from aqueduct.ipc.core.pdu import MAX_INT32
from aqueduct.ipc.core.settings import IpcSettings


def test_the_defaults_are_those_of_the_specification() -> None:
    """IPC-CONF-3: they are fixed, not negotiated."""
    config = IpcSettings()
    assert config.max_message == 16 * 1024 * 1024
    assert (config.owner_id_lifetime, config.receive_timeout, config.ack_timeout) == (6, 6, 5)
    assert (config.min_backoff, config.max_backoff, config.held_backoff) == (0.05, 0.2, 1)
    assert config.id_trust == 1
    with pytest.raises(AttributeError):
        config.max_message = 1  # type: ignore[misc]


REFUSED: list[dict[str, Any]] = [
    {"max_message": 65_535},  # IPC-CONF-1
    {"max_pdu": 511},  # IPC-CONF-1
    {"max_message": MAX_INT32 + 1, "max_received": MAX_INT32 + 1},
    {"max_pdu": -1},
    {"owner_id_lifetime": 0},
    {"owner_id_lifetime": 0.099},
    {"held_backoff": 0},
    {"ack_timeout": 0},
    {"receive_timeout": 4.999},  # IPC-CONF-2
    {"min_backoff": -0.1},
    {"min_backoff": 0.3},
    {"min_backoff": 0, "max_backoff": 0},
    {"id_trust": -1},
    {"window": -1},
    {"max_sends": 0},
    {"max_remotes": 0},
    {"max_receives": 0},
    {"max_received": 16 * 1024 * 1024 - 1},
    {"max_processed": 0},
    {"owner_id_lifetime": float("inf")},
    {"receive_timeout": 2e9},
    {"id_trust": float("nan")},
]


@pytest.mark.parametrize("changes", REFUSED, ids=str)
def test_invalid_settings_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"IpcSettings\(\w+=.*\): give "):
        IpcSettings(**changes)


@pytest.mark.parametrize(
    "changes", [{"max_sends": 1.5}, {"max_pdu": 1.5e6}, {"ack_timeout": "1"}, {"id_trust": None}]
)
def test_a_setting_that_is_not_a_number_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        IpcSettings(**changes)


ALLOWED: list[dict[str, Any]] = [
    {"max_message": 65_536},  # IPC-CONF-1
    {"max_message": MAX_INT32, "max_received": MAX_INT32},
    {"max_pdu": 512},  # IPC-CONF-1
    {"receive_timeout": 5, "ack_timeout": 5},  # IPC-CONF-2
    {"min_backoff": 0, "max_backoff": 0.001},
    {"id_trust": 0},
    {"owner_id_lifetime": 0.1},
    {"max_sends": 1, "max_remotes": 1, "max_receives": 1, "max_processed": 1},
]


@pytest.mark.parametrize("changes", ALLOWED, ids=str)
def test_the_bounds_themselves_are_allowed(changes: dict[str, Any]) -> None:
    assert IpcSettings(**changes) == IpcSettings(**changes)


def test_a_pdu_holds_42_bytes_besides_its_data() -> None:
    """IPC-PDU-2."""
    assert IpcSettings(max_pdu=512).max_data == 470
