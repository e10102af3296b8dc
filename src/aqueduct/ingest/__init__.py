"""Ingest: durable, partitioned topics with exactly-once writes; needs pyarrow.

>>> from aqueduct import ingest
>>> producer = ingest.Producer("localhost:4434", "telemetry")
"""

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
from aqueduct.ingest.server.metrics import Metrics
from aqueduct.ingest.server.permissions import Grant, Permissions, read_permissions
from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.settings import IngestSettings
from aqueduct.ingest.storage.base import (
    Fenced,
    NothingStored,
    OutcomeUnknown,
    UnencodableRecords,
)
from aqueduct.ingest.storage.local.repair import Loss, repair

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
