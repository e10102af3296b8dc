"""Errors of the Spark source, the Spark sink and the session."""

from __future__ import annotations

from aqueduct.errors import AqueductError


class SourceError(AqueductError):
    """The base class of all errors of the Spark source."""


class SinkError(AqueductError):
    """The base class of all errors of the Spark sink."""


class WrongOption(SourceError, SinkError, ValueError):
    """An option is unknown, has an invalid value, or conflicts with another option."""


class Unreachable(SourceError, SinkError):
    """A server does not answer, or rejects this client."""


class DataLoss(SourceError):
    """Rows that a query must read do not exist, or no longer exist."""


class TopicIdentityError(DataLoss, SinkError):
    """A topic was recreated, or restored from an older copy, since the query used it."""


class NoJava(AqueductError, RuntimeError):
    """No Java that Spark can run on was found."""
