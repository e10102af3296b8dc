"""Ownership of producer ids, jobs and named readers by the token that used them first.

An owner is ``n-NAME`` for a token with a name, else ``k-`` and a keyed hash of the token. Without
tokens there are no owners, and every client may use every name.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

from aqueduct.ingest.errors import CorruptFile, IngestError, NotAllowed
from aqueduct.ingest.storage.base import Blob
from aqueduct.ingest.storage.checked import read_blob, write_blob
from aqueduct.ingest.storage.local.files import replace_file

KEY = ".owners.key"
"""The key file in the server's directory: it prevents offline guessing from stored hashes."""
_KEY_SIZE = 32
_DIGITS = 32


def owner_of_token(digest: bytes, key: bytes) -> str:
    """Return the owner string of a token without a name."""
    return "k-" + hmac.new(key, digest, hashlib.sha256).hexdigest()[:_DIGITS]


def tagged(owner: str, instance: str) -> str:
    """Return a producer's instance prefixed with the owner of its id, as stored."""
    return f"{owner}:{instance}" if owner else instance


def tag_of(instance: str) -> str:
    """Return the owner in a stored instance; empty for none."""
    return instance.rpartition(":")[0]


def check_owner(what: str, name: str, known: str, owner: str) -> None:
    """Raise `NotAllowed` unless ``owner`` may use a name that belongs to ``known``."""
    if owner and known and known != owner:
        raise NotAllowed(
            f"{what} {name!r} belongs to another token; use another {what}, or give both tokens "
            "the same name in the server's file of tokens"
        )


def _secret(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_key(directory: Path) -> bytes:
    """Return the key of a server's directory; create it on first use."""
    path = directory / KEY
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = secrets.token_bytes(_KEY_SIZE)
        replace_file(path, key, opener=_secret)
    if len(key) != _KEY_SIZE:
        raise IngestError(f"{path} has {len(key)} bytes, not {_KEY_SIZE}; restore it from a backup")
    return key


class Owners:
    """The owners of names of one kind in one topic. Not thread-safe."""

    def __init__(self, blob: Blob, what: str) -> None:
        self._blob = blob
        self._what = what
        self._owners: dict[str, str] = {}
        self._fault = ""
        try:
            self._owners = read_blob(blob, dict[str, str], f"a list of owners of {what}s") or {}
        except CorruptFile as fault:
            self._fault = str(fault)

    def check(self, name: str, owner: str) -> None:
        """Raise `NotAllowed` if a name belongs to another owner."""
        if owner and self._fault:
            raise IngestError(
                f"the owners of {self._what}s cannot be read: {self._fault}; restore the file, or "
                "remove it and restart the server: each then belongs to its next user"
            )
        check_owner(self._what, name, self._owners.get(name, ""), owner)

    def may_claim(self, name: str, owner: str) -> bool:
        """Return whether a name has no owner yet and ``owner`` would become it."""
        return bool(owner) and name not in self._owners

    def claim(self, claims: Mapping[str, str], keep: Collection[str]) -> None:
        """Record the owners of new names; forget names that are not in ``keep``."""
        fresh = {
            name: owner
            for name, owner in claims.items()
            if owner and name in keep and name not in self._owners
        }
        kept = {name: owner for name, owner in self._owners.items() if name in keep}
        if not fresh and (len(kept) == len(self._owners) or self._fault):
            return
        write_blob(self._blob, {**kept, **fresh})
        self._owners = {**kept, **fresh}
