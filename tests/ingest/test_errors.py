"""The errors of ingest, and the refusals that they are on the wire."""

from pathlib import Path

import pytest

from aqueduct.errors import AqueductError
from aqueduct.ingest.errors import (
    CorruptFile,
    DiskLow,
    IngestError,
    NotAllowed,
    RefusedRecords,
    UnknownTopic,
    refusal_error,
)
from aqueduct.ingest.protocol import Refusal


def test_a_corrupt_file_is_named_with_the_byte() -> None:
    fault = CorruptFile(Path("t/part=0/7.wal"), 28, "there is no block")
    assert str(fault) == "t/part=0/7.wal, byte 28: there is no block"
    assert (fault.path, fault.position, fault.reason) == (
        Path("t/part=0/7.wal"),
        28,
        "there is no block",
    )


@pytest.mark.parametrize("kind", [RefusedRecords, UnknownTopic, NotAllowed, DiskLow])
def test_a_refusal_is_decoded_to_its_error(kind: type[IngestError]) -> None:
    error = refusal_error(Refusal(kind.code, "a reason"))
    assert type(error) is kind
    assert str(error) == "a reason"


@pytest.mark.parametrize("code", ["failed", "corrupt", "no such code", ""])
def test_an_unknown_refusal_is_an_ingest_error(code: str) -> None:
    error = refusal_error(Refusal(code, "a reason"))
    assert type(error) is IngestError
    assert isinstance(error, AqueductError)
