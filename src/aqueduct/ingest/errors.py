"""What can be wrong with stored data, and with what somebody asks of an ingest server."""

from __future__ import annotations

from pathlib import Path

from aqueduct.errors import AqueductError
from aqueduct.ingest.protocol import Refusal


class IngestError(AqueductError):
    """The root of all errors of ingest; ``code`` says to programs what it is."""

    code = "failed"


class RefusedRecords(IngestError):
    """The server does not take what a producer sends."""

    code = "refused"


class StepConflict(RefusedRecords):
    """A step of a job was ended with other rows than those stored for it."""

    code = "conflict"


class UnknownTopic(IngestError):
    """There is no such topic, or no such range of it."""

    code = "unknown"


class TopicReplaced(IngestError):
    """The topic was recreated, or restored from an older copy."""

    code = "replaced"


class NotAllowed(IngestError):
    """The token of the connection does not allow it."""

    code = "forbidden"


class DiskLow(IngestError):
    """There is too little room on the server's disk."""

    code = "disk"


class CorruptFile(IngestError):
    """A file does not hold what was written into it."""

    code = "corrupt"

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path}, byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


def refusal_error(refusal: Refusal) -> IngestError:
    """The error that a server's refusal is."""
    kinds = (RefusedRecords, StepConflict, UnknownTopic, TopicReplaced, NotAllowed, DiskLow)
    for kind in kinds:
        if kind.code == refusal.code:
            return kind(refusal.reason)
    return IngestError(refusal.reason)


def refusal_of(error: IngestError | OSError) -> Refusal:
    """What is said to whoever asked for something that failed."""
    if isinstance(error, IngestError):
        return Refusal(error.code, str(error))
    return Refusal(IngestError.code, f"the server could not do that: {error.strerror}")
