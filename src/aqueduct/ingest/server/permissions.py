"""Authorisation: which topics a token may write and read, decided when a client connects."""

from __future__ import annotations

import hashlib
import hmac
import logging
import stat
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from aqueduct.api.server import Refuse
from aqueduct.ingest.errors import IngestError, NotAllowed
from aqueduct.ingest.protocol import AUTHORIZATION, NAME
from aqueduct.ingest.server.owners import owner_of_token
from aqueduct.runtime.headers import Headers

_log = logging.getLogger("aqueduct.ingest")


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The permissions of a token: patterns of topics, such as ``telemetry.*``."""

    write: list[str] = []
    read: list[str] = []
    name: str = ""
    """The owner of the producer ids, jobs and named readers that the token uses first. Tokens with
    the same name share them, so that a token can be rotated; without a name the token owns them."""
    admin: bool = False
    """Whether the token may also use what belongs to other tokens."""

    def check_write(self, topic: str) -> None:
        """Raise `NotAllowed` unless the token may write a topic."""
        _check(self.write, topic, "write to")

    def check_read(self, topic: str) -> None:
        """Raise `NotAllowed` unless the token may read a topic."""
        _check(self.read, topic, "read")

    def may_read(self, topic: str) -> bool:
        """Return whether the token may read a topic."""
        return any(fnmatchcase(topic, pattern) for pattern in self.read)


EVERYTHING = Grant(["*"], ["*"])


def _check(patterns: list[str], topic: str, what: str) -> None:
    if not any(fnmatchcase(topic, pattern) for pattern in patterns):
        raise NotAllowed(f"this token may not {what} topic {topic[:120]!r}")


class Permissions:
    """Tokens and their grants; without tokens, every client may do everything."""

    def __init__(self, tokens: Mapping[str, Grant] | None = None) -> None:
        # Only digests are kept, so that no dump of this object reveals a token.
        self._grants = {_digest(token): grant for token, grant in (tokens or {}).items()}
        self.is_open = tokens is None
        """Whether clients need no token."""
        for grant in self._grants.values():
            if grant.name and not NAME.fullmatch(grant.name):
                raise IngestError(
                    f"invalid token name {grant.name[:120]!r}: use up to 100 letters, "
                    "digits, dots, dashes and underscores"
                )

    def grant(self, headers: Headers) -> Grant:
        """Return the grant of a connection with these headers; raise `Refuse` for a wrong token."""
        if self.is_open:
            return EVERYTHING
        found = self._find(digest_of(headers))
        if found is not None:
            return found
        raise Refuse(
            "this server wants a token that it knows, in the header authorization: Bearer TOKEN",
            unauthenticated=True,
        )

    def owner(self, headers: Headers, key: bytes) -> str:
        """Return the owner for a connection with these headers; empty without tokens."""
        if self.is_open:
            return ""
        name = self.grant(headers).name
        return f"n-{name}" if name else owner_of_token(digest_of(headers), key)

    def _find(self, digest: bytes) -> Grant | None:
        """Return the grant of a token; compare with all tokens, so that the time is constant."""
        found = None
        for known, grant in self._grants.items():
            if hmac.compare_digest(known, digest):
                found = grant
        return found


def digest_of(headers: Headers) -> bytes:
    """Return the digest of the token of a connection."""
    return _digest((headers.text(AUTHORIZATION) or "").removeprefix("Bearer "))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def read_permissions(path: Path) -> Permissions:
    """Read tokens from a JSON file: ``{"TOKEN": {"write": ["telemetry.*"], "read": ["*"]}}``."""
    try:
        tokens = msgspec.json.decode(path.read_bytes(), type=dict[str, Grant])
    except OSError as error:
        raise IngestError(f"cannot read the tokens in {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise IngestError(f"{path} does not hold tokens: {error}") from None
    if path.stat().st_mode & stat.S_IRWXO:
        _log.warning("any user of this machine can read the tokens in %s: chmod 600 it", path)
    if any(len(token) < 16 for token in tokens):
        raise IngestError(f"{path} has a token of less than 16 characters, which can be guessed")
    return Permissions(tokens)
