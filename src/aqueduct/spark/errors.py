"""What can be wrong with what Spark is asked to read or write, and with what is there."""

from __future__ import annotations

from aqueduct.errors import AqueductError


class SourceError(AqueductError):
    """The root of all errors of the Spark source."""


class SinkError(AqueductError):
    """The root of all errors of the Spark sink."""


class WrongOption(SourceError, SinkError, ValueError):
    """An option that is not known, has a value that it cannot have, or does not go with others."""


class Unreachable(SourceError, SinkError):
    """A server that does not answer, or not to us."""


class DataLoss(SourceError):
    """Rows that should be read are not there any more, or have never been."""


class TopicIdentityError(DataLoss, SinkError):
    """A topic was recreated, or restored from an older copy, since the query used it."""
