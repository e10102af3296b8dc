"""The options of the Spark sink: which there are, what they mean, and which go together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from aqueduct.spark.errors import WrongOption
from aqueduct.spark.option_values import CONTINUE, ERROR, SERVER_NAMES, Given, ServerOptions

NAMES = (
    "servers",
    "topic",
    "key",
    "value",
    "headers",
    "timestamp",
    "idColumn",
    "partitions",
    "writeId",
    "writeStep",
    "onTopicReplaced",
    "failOnExtraRows",
    *SERVER_NAMES,
)
"""Every option, as it is written; Spark does not tell capital letters from small ones."""

_OF_SPARK = ("checkpointLocation", "queryName")
"""What Spark passes on of its own."""
_WRITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MAX_PARTITIONS = 1_000
"""The server has a limit of its own, which is lower; this is against slips."""


@dataclass(frozen=True)
class SinkOptions(ServerOptions):
    """What to write, and where to."""

    topic: str | None
    """Where all rows go; None to have a column say so."""
    partitions: int | None
    """Of topics that are new."""
    columns: Mapping[str, str]
    """Of the parts of a record (`PARTS`) those that somebody gave a column."""
    id_column: str | None
    write_id: str | None
    """What the write is called, so that it is known again."""
    write_step: int
    """Which of the writes of that name, with rising numbers."""
    on_topic_replaced: str
    """The action of a stream for a topic that was replaced: ``error`` or ``continue``."""
    fail_on_extra_rows: bool
    """Whether a batch fails if an earlier run of it stored rows that it no longer has."""


PARTS = ("key", "value", "headers", "timestamp")
"""What a record is made of."""


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options that somebody gave; raises `WrongOption` for the first that cannot be."""
    options = Given(given)
    options.check_names(NAMES, _OF_SPARK)
    servers = options.server_options()
    if not servers.servers:
        raise WrongOption("option servers says where to write to, as host:port, and is missing")
    topics = options.topics("topic")
    if len(topics) > 1:
        raise WrongOption(
            "option topic is the one topic that all rows go to; to have rows go to several, leave "
            "it out and give them a column topic"
        )
    if streaming:
        options.refuse(
            ("writeId", "writeStep"),
            "is for a batch only; a stream is known by its checkpoint, and stores no row of its "
            "batches twice",
        )
    else:
        options.refuse(("onTopicReplaced",), "is for a stream only")
    write_id = options.text("writeId")
    if write_id is None:
        options.refuse(("writeStep",), "goes with writeId, the name of what has steps")
    if write_id is not None and not _WRITE_ID.fullmatch(write_id):
        raise WrongOption(
            f"option writeId is up to 100 letters, digits, '.', '_' and '-', not {write_id!r}"
        )
    return SinkOptions(
        **asdict(servers),
        topic=topics[0] if topics else None,
        partitions=options.number("partitions", 1, MAX_PARTITIONS),
        columns={part: name for part in PARTS if (name := options.text(part)) is not None},
        id_column=options.text("idColumn"),
        write_id=write_id,
        write_step=options.number("writeStep", 0) or 0,
        on_topic_replaced=options.choice("onTopicReplaced", (ERROR, CONTINUE), ERROR),
        fail_on_extra_rows=options.flag("failOnExtraRows", True),
    )
