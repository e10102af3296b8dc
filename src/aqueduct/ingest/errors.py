"""The errors of ingest, and their form on the wire."""

from __future__ import annotations

from pathlib import Path

from aqueduct.errors import AqueductError
from aqueduct.ingest.protocol import Refusal


class IngestError(AqueductError):
    """The base class of ingest errors; ``code`` identifies the kind on the wire."""

    code = "failed"


class RefusedRecords(IngestError):
    """The server rejects the records, or the producer."""

    code = "refused"


class StepConflict(RefusedRecords):
    """A step of a job ended with other rows than those stored for it."""

    code = "conflict"


class UnknownTopic(IngestError):
    """The topic, or the range of offsets, does not exist."""

    code = "unknown"


class TopicReplaced(IngestError):
    """The topic was recreated, or restored from an older copy."""

    code = "replaced"


class NotAllowed(IngestError):
    """The token of the connection does not permit the request."""

    code = "forbidden"


class DiskLow(IngestError):
    """The server's disk has too little free space."""

    code = "disk"


class CorruptFile(IngestError):
    """A file is damaged: it does not contain what was written."""

    code = "corrupt"

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path}, byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


def refusal_error(refusal: Refusal) -> IngestError:
    """Return the error for a server's refusal."""
    kinds = (RefusedRecords, StepConflict, UnknownTopic, TopicReplaced, NotAllowed, DiskLow)
    for kind in kinds:
        if kind.code == refusal.code:
            return kind(refusal.reason)
    return IngestError(refusal.reason)


def refusal_of(error: IngestError | OSError) -> Refusal:
    """Return the refusal for a request that failed."""
    if isinstance(error, IngestError):
        return Refusal(error.code, str(error))
    return Refusal(IngestError.code, f"the server could not do that: {error.strerror}")
