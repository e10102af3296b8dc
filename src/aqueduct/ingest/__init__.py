"""Ingest: from channels to durable partitions, exactly once; needs pyarrow.

>>> from aqueduct import ingest
>>> producer = ingest.Producer("localhost:4434", "telemetry")
"""

try:
    import pyarrow as _pyarrow  # noqa: F401 -- so that what is missing is said once, and in full
except ImportError as _error:
    raise ImportError(
        "aqueduct.ingest needs pyarrow: pip install 'aqueduct-channels[ingest]'", name="pyarrow"
    ) from _error

from aqueduct.ingest import blocking
from aqueduct.ingest.batch import Stored
from aqueduct.ingest.client import Client, end_step
from aqueduct.ingest.faults import (
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
from aqueduct.ingest.limits import IngestLimits
from aqueduct.ingest.messages import PartitionInfo, StepInfo, TopicInfo
from aqueduct.ingest.metrics import Metrics
from aqueduct.ingest.once import Fingerprint, Once
from aqueduct.ingest.permissions import Grant, Permissions, read_permissions
from aqueduct.ingest.producer import Producer
from aqueduct.ingest.reader import DirectoryReader, Reader
from aqueduct.ingest.repairing import Loss, repair
from aqueduct.ingest.server import IngestServer

__all__ = [
    "Client",
    "CorruptFile",
    "DirectoryReader",
    "DiskLow",
    "Epoch",
    "Fingerprint",
    "Grant",
    "History",
    "IngestError",
    "IngestLimits",
    "IngestServer",
    "Loss",
    "Metrics",
    "NotAllowed",
    "Once",
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
    "UnknownTopic",
    "blocking",
    "end_step",
    "read_permissions",
    "repair",
]
