"""Offsets in checkpoints: equal documents for equal offsets, old versions stay readable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.spark.errors import SourceError
from aqueduct.spark.source.offsets import (
    Identities,
    Offsets,
    TopicIdentity,
    TopicPartition,
    checkpoint_from_json,
    from_json,
    parse,
    to_json,
)


def text(offsets: Offsets, identities: Identities | None = None) -> str:
    """Return the document of a checkpoint, as Spark writes it."""
    return json.dumps(to_json(offsets, identities))


FIXTURES = Path(__file__).with_name("fixtures")
PARTITIONS = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 70))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**62))


@given(OFFSETS)
def test_written_offsets_are_read_back(offsets: dict[TopicPartition, int]) -> None:
    assert parse(text(offsets)) == offsets


@given(OFFSETS, st.randoms())
def test_equal_offsets_are_equal_documents(offsets: dict[TopicPartition, int], rng: object) -> None:
    items = list(offsets.items())
    rng.shuffle(items)  # type: ignore[attr-defined]
    assert text(dict(items)) == text(offsets)
    assert json.dumps(to_json(parse(text(offsets)))) == text(offsets)


def test_version_1_stays_readable() -> None:
    kept = (FIXTURES / "offsets-1.json").read_text()
    offsets = parse(kept)
    assert offsets == {
        TopicPartition("logs", 0): 12,
        TopicPartition("logs", 1): 0,
        TopicPartition("logs", 10): 3,
        TopicPartition("metrics", 0): 7,
    }
    assert checkpoint_from_json(json.loads(kept))[1] == {}


def test_the_format_of_version_2_never_changes() -> None:
    kept = (FIXTURES / "offsets-2.json").read_text()
    offsets, identities = checkpoint_from_json(json.loads(kept))
    assert offsets == parse((FIXTURES / "offsets-1.json").read_text())
    assert identities == {
        "logs": TopicIdentity("0f8fad5bd9cb469fa16570867728950e", "7c9e6679a7f54b1d")
    }
    assert text(dict(reversed(offsets.items())), identities) == kept


def test_offsets_without_a_version_are_readable() -> None:
    assert parse((FIXTURES / "offsets-0.json").read_text()) == {
        TopicPartition("logs", 0): 12,
        TopicPartition("logs", 1): 0,
        TopicPartition("metrics", 0): 7,
    }


def test_a_newer_version_is_rejected() -> None:
    with pytest.raises(SourceError, match="offsets of version 3 were written by a newer Aqueduct"):
        parse((FIXTURES / "offsets-3.json").read_text())


def test_a_topic_can_be_named_version() -> None:
    assert from_json({"version": {"0": 3}}) == {TopicPartition("version", 0): 3}
    offsets = {TopicPartition("version", 0): 3}
    assert parse(text(offsets)) == offsets


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ([], "a JSON object, not"),
        ({"version": "1", "topics": {}}, "version '1'"),
        ({"version": True, "topics": {}}, "version True"),
        ({"version": 1}, "not offsets of version 1"),
        ({"version": 1, "topics": {}, "more": 1}, "not offsets of version 1"),
        ({"version": 2}, "not offsets of version 2"),
        ({"version": 2, "topics": {"logs": {"0": 1}}}, "not its id, epoch and offsets"),
        ({"version": 2, "topics": {"logs": {"id": "a", "offsets": {}}}}, "topic 'logs' has"),
        (
            {"version": 2, "topics": {"logs": {"id": "a", "epoch": 1, "offsets": {"0": 1}}}},
            "topic 'logs' has the id",
        ),
        ({"version": 2, "topics": {"logs": {"offsets": {"0": -3}}}}, "-3 is not an offset"),
        ({"logs": 3}, "topic 'logs' has 3"),
        ({"logs": {"one": 3}}, "'one' is not the number of a partition of topic 'logs'"),
        ({"logs": {"01": 3}}, "'01' is not the number"),
        ({"logs": {"-1": 3}}, "'-1' is not the number"),
        ({"logs": {"0": "3"}}, "topic 'logs' partition 0: '3' is not an offset"),
        ({"logs": {"0": True}}, "True is not an offset"),
        ({"logs": {"0": -3}}, "-3 is not an offset"),
        ({"logs": {"0": 1.5}}, "1.5 is not an offset"),
    ],
)
def test_an_invalid_document_is_rejected(document: object, fault: str) -> None:
    with pytest.raises(SourceError, match=fault):
        from_json(document)


@pytest.mark.parametrize("bad", ["", "{", "nonsense", "[" * 100_000])
def test_invalid_json_is_rejected(bad: str) -> None:
    with pytest.raises(SourceError, match="not JSON"):
        parse(bad)
