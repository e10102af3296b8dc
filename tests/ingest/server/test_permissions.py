"""Permissions of tokens; no output shows a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from aqueduct.api.server import Refuse
from aqueduct.errors import CloseCode
from aqueduct.ingest.errors import IngestError, NotAllowed
from aqueduct.ingest.server.permissions import EVERYTHING, Grant, Permissions, read_permissions
from aqueduct.runtime.headers import Headers

SENSOR = Grant(write=["telemetry.*"], read=[])
PERMISSIONS = Permissions({"token of sensors": SENSOR, "token of reports": Grant(read=["*"])})


def headers(value: str | None) -> Headers:
    return Headers(() if value is None else ((b"authorization", value.encode()),))


def test_a_token_is_found_with_and_without_the_word_bearer() -> None:
    assert PERMISSIONS.grant(headers("Bearer token of sensors")) is SENSOR
    assert PERMISSIONS.grant(headers("token of sensors")) is SENSOR


@pytest.mark.parametrize(
    "value", [None, "", "Bearer ", "Bearer token of", "Basic token of sensors"]
)
def test_an_unknown_token_is_rejected(value: str | None) -> None:
    with pytest.raises(Refuse, match="wants a token that it knows") as caught:
        PERMISSIONS.grant(headers(value))
    assert caught.value.code == CloseCode.UNAUTHENTICATED


def test_without_tokens_all_requests_are_permitted() -> None:
    assert Permissions().grant(headers(None)) is EVERYTHING
    with pytest.raises(Refuse):
        Permissions({}).grant(headers(None))  # tokens are required, and none is defined


def test_patterns_restrict_reading_and_writing() -> None:
    SENSOR.check_write("telemetry.kitchen")
    for topic in ("telemetry", "Telemetry.kitchen", "other"):
        with pytest.raises(NotAllowed, match=f"may not write to topic '{topic}'"):
            SENSOR.check_write(topic)
    with pytest.raises(NotAllowed, match="may not read topic"):
        SENSOR.check_read("telemetry.kitchen")
    assert not SENSOR.may_read("telemetry.kitchen")
    assert Grant(read=["a", "b?"]).may_read("b1")


def test_tokens_are_not_kept() -> None:
    assert "sensors" not in repr(PERMISSIONS)
    assert "sensors" not in str(vars(PERMISSIONS))


def test_tokens_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text('{"0123456789abcdef": {"write": ["a"]}}')
    assert read_permissions(path).grant(headers("0123456789abcdef")) == Grant(write=["a"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "does not hold tokens"),
        ('{"0123456789abcdef": {"wriet": ["a"]}}', "does not hold tokens: .*wriet"),
        ('{"0123456789abcdef": "all"}', "does not hold tokens"),
        ('{"short": {}}', "a token of less than 16 characters, which can be guessed"),
    ],
)
def test_a_file_without_valid_tokens_is_an_error_that_shows_none(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(text)
    with pytest.raises(IngestError, match=sentence) as caught:
        read_permissions(path)
    assert "0123456789abcdef" not in str(caught.value)
    assert "short" not in str(caught.value)
    with pytest.raises(IngestError, match="cannot read the tokens in"):
        read_permissions(tmp_path / "missing.json")
