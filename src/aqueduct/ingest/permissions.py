"""Who may write and read which topics: decided once, when a connection is made."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from aqueduct.channel.headers import Headers
from aqueduct.channel.server import Refuse
from aqueduct.ingest.faults import IngestError, NotAllowed

HEADER = "authorization"


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody may do: patterns of topics, such as ``telemetry.*``."""

    write: list[str] = []
    read: list[str] = []

    def check_write(self, topic: str) -> None:
        """Raise unless a topic may be written."""
        _check(self.write, topic, "write to")

    def check_read(self, topic: str) -> None:
        """Raise unless a topic may be read."""
        _check(self.read, topic, "read")

    def may_read(self, topic: str) -> bool:
        """Whether a topic may be read."""
        return any(fnmatchcase(topic, pattern) for pattern in self.read)


EVERYTHING = Grant(["*"], ["*"])


def _check(patterns: list[str], topic: str, what: str) -> None:
    if not any(fnmatchcase(topic, pattern) for pattern in patterns):
        raise NotAllowed(f"this token may not {what} topic {topic[:120]!r}")


class Permissions:
    """Tokens, and what each allows; without any, everybody may do everything."""

    def __init__(self, tokens: Mapping[str, Grant] | None = None) -> None:
        # Only what tokens hash to is kept, so that nothing that shows this object shows them.
        self._grants = {_digest(token): grant for token, grant in (tokens or {}).items()}
        self._open = tokens is None

    def grant(self, headers: Headers) -> Grant:
        """What a connection with these headers may do; raises `Refuse` for a token not known."""
        if self._open:
            return EVERYTHING
        given = headers.text(HEADER) or ""
        digest = _digest(given.removeprefix("Bearer "))
        for known, grant in self._grants.items():
            if hmac.compare_digest(known, digest):
                return grant
        raise Refuse(
            "this server wants a token that it knows, in the header authorization: Bearer TOKEN",
            unauthenticated=True,
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def read_permissions(path: Path) -> Permissions:
    """Tokens from a JSON file: ``{"TOKEN": {"write": ["telemetry.*"], "read": ["*"]}}``."""
    try:
        tokens = msgspec.json.decode(path.read_bytes(), type=dict[str, Grant])
    except OSError as error:
        raise IngestError(f"cannot read the tokens in {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise IngestError(f"{path} does not hold tokens: {error}") from None
    if any(len(token) < 16 for token in tokens):
        raise IngestError(f"{path} has a token of less than 16 characters, which can be guessed")
    return Permissions(tokens)
