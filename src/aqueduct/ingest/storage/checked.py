"""Small values with a checksum: JSON in an envelope that detects damage."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.storage.base import Blob

T = TypeVar("T")


class _Envelope(msgspec.Struct):
    checksum: int
    content: msgspec.Raw


def encode_checked(content: object) -> bytes:
    """Encode a value together with its checksum."""
    body = msgspec.json.encode(content)
    return msgspec.json.encode(_Envelope(zlib.crc32(body), msgspec.Raw(body)))


def decode_checked(data: bytes, kind: type[T], what: str, source: Path) -> T:
    """Decode the output of `encode_checked`; raise `CorruptFile`, which names ``source``."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if zlib.crc32(envelope.content) != envelope.checksum:
            raise CorruptFile(source, 0, f"the checksum of {what} is wrong")
        return msgspec.json.decode(envelope.content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptFile(source, 0, f"not {what}: {error}") from None


def write_blob(blob: Blob, content: object) -> None:
    """Replace the value of a blob; raise `IngestError` if that fails."""
    blob.write(encode_checked(content))


def read_blob(blob: Blob, kind: type[T], what: str) -> T | None:
    """Return the value of a blob, None if there is none; raise `CorruptFile` if it is damaged."""
    data = blob.read()
    return None if data is None else decode_checked(data, kind, what, Path(blob.location))
