"""The columns of a trace file, as documented in docs/trace.md."""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 2
"""Incremented when a column is removed, or a column or kind is renamed or redefined."""

VERSION_KEY = b"aqueduct.trace.schema"

SCHEMA = pa.schema(
    [
        pa.field("recorder", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("monotonic_ns", pa.int64(), nullable=False),
        pa.field("wall", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("connection", pa.string(), nullable=False),
        pa.field("side", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("frame", pa.string()),
        pa.field("channel", pa.int64()),
        pa.field("channel_name", pa.string()),
        pa.field("role", pa.string()),
        pa.field("message", pa.int64()),
        pa.field("reliable", pa.bool_()),
        pa.field("size", pa.int64()),
        pa.field("payload_size", pa.int64()),
        pa.field("stream", pa.int64()),
        pa.field("fin", pa.bool_()),
        pa.field("value", pa.int64()),
        pa.field("ranges", pa.list_(pa.int64())),
        pa.field("header_names", pa.list_(pa.string())),
        pa.field("attachments", pa.list_(pa.int64())),
        pa.field("carrier", pa.int64()),
        pa.field("carrier_message", pa.int64()),
        pa.field("carrier_reliable", pa.bool_()),
        pa.field("mode", pa.string()),
        pa.field("how", pa.string()),
        pa.field("lineage", pa.list_(pa.int64())),
        pa.field("code", pa.int64()),
        pa.field("by_peer", pa.bool_()),
        pa.field("rule", pa.string()),
        pa.field("limits", pa.string()),
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()},
)

NAMES = ("recorder", "connection", "side", "kind", "frame", "channel_name", "role")
"""Columns with few distinct values, which are dictionary-encoded."""

WRITTEN = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int64(), pa.string())) if field.name in NAMES else field
        for field in SCHEMA
    ],
    metadata=SCHEMA.metadata,
)
"""The schema used for writing; readers see dictionary columns as strings."""

RARE = (
    "payload_size",
    "ranges",
    "header_names",
    "attachments",
    "carrier",
    "carrier_message",
    "carrier_reliable",
    "mode",
    "how",
    "lineage",
    "code",
    "by_peer",
    "rule",
    "limits",
)
"""Columns that are null in most rows."""
