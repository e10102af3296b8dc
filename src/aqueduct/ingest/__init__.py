"""Ingest: durable, partitioned topics with exactly-once writes; needs pyarrow.

>>> from aqueduct import ingest
>>> producer = ingest.Producer("localhost:4434", "telemetry")
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

try:
    import pyarrow as _pyarrow  # noqa: F401 -- a clear error if it is missing
except ImportError as _error:
    raise ImportError(
        "aqueduct.ingest needs pyarrow: pip install 'aqueduct-channels[ingest]'", name="pyarrow"
    ) from _error

from aqueduct.ingest import blocking
from aqueduct.ingest.client.connection import Client, end_step
from aqueduct.ingest.client.outbox import Stored
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.client.reader import DirectoryReader, Reader
from aqueduct.ingest.dedup.scope import Fingerprint, WriteScope
from aqueduct.ingest.errors import (
    CorruptFile,
    DiskLow,
    IngestError,
    NotAllowed,
    RefusedRecords,
    StepConflict,
    TopicReplaced,
    UnknownTopic,
)
from aqueduct.ingest.identity import Epoch, History, TopicPosition
from aqueduct.ingest.protocol import PartitionInfo, StepInfo, TopicInfo
from aqueduct.ingest.server.permissions import Grant, Permissions, read_permissions
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.base import (
    Fenced,
    NothingStored,
    OutcomeUnknown,
    UnencodableRecords,
)

if _TYPE_CHECKING:
    from aqueduct.ingest.server.metrics import Metrics
    from aqueduct.ingest.server.server import IngestServer
    from aqueduct.ingest.storage.local.repair import Loss, repair

_SERVER = {
    "IngestServer": "aqueduct.ingest.server.server",
    "Loss": "aqueduct.ingest.storage.local.repair",
    "Metrics": "aqueduct.ingest.server.metrics",
    "repair": "aqueduct.ingest.storage.local.repair",
}
"""Imported on first use: Spark starts processes for each query, which are clients only."""


def __getattr__(name: str) -> _Any:
    """Return a name of the server side, imported on first use."""
    if name not in _SERVER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_SERVER[name]), name)
    return value


def __dir__() -> list[str]:
    """Return all names, also those that were not used yet."""
    return sorted({*globals(), *_SERVER})


__all__ = [
    "Client",
    "CorruptFile",
    "DirectoryReader",
    "DiskLow",
    "Epoch",
    "Fenced",
    "Fingerprint",
    "Grant",
    "History",
    "IngestError",
    "IngestServer",
    "IngestSettings",
    "Loss",
    "Metrics",
    "NotAllowed",
    "NothingStored",
    "OutcomeUnknown",
    "PartitionInfo",
    "Permissions",
    "Producer",
    "Reader",
    "RefusedRecords",
    "StepConflict",
    "StepInfo",
    "Stored",
    "TopicInfo",
    "TopicPosition",
    "TopicReplaced",
    "UnencodableRecords",
    "UnknownTopic",
    "WriteScope",
    "blocking",
    "end_step",
    "read_permissions",
    "repair",
]
