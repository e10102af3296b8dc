"""The seeds of the files of a partition."""

import msgspec

from aqueduct.ingest.storage.local.manifest import Manifest
from aqueduct.ingest.storage.local.wal import MAGIC, BlockMetadata
from tests.fuzz.files import CHECKSUM, HEADER, REPAIR, repair

AS_IT_IS = b"\x00"
REPAIRED = bytes((REPAIR,))


def block(first: int, count: int, metadata: BlockMetadata, body: bytes = b"rows") -> bytes:
    """Return a block without rows: the bytes of Arrow differ from version to version."""
    meta = msgspec.msgpack.encode(metadata)
    header = HEADER.pack(MAGIC, len(meta), len(body), first, count, 0) + CHECKSUM.pack(0)
    return repair(header + meta + body)


def logs() -> dict[str, bytes]:
    """Return valid, torn and damaged logs."""
    first = block(0, 2, BlockMetadata(1, {0: 0}, {"p": 2}, 5, 1, 2))
    second = block(2, 1, BlockMetadata(2, {0: 2, 1: 7}, {"p": 3, "q": 1}, 6, 1, 2))
    foreign = block(2, 1, BlockMetadata(2, {1: 2}, {"q": 1}, 6, 1, 2))
    repaired = {
        "two": first + second,
        "twice": first + first,
        "out-of-order": second + first,
        "foreign": first + foreign,
        "torn": first + second[:-3],
        "no-rows": block(0, 0, BlockMetadata(1, {0: 0}, {}, 0, 0, 0)),
        "far": block(2**63, 2**32 - 1, BlockMetadata(2**63, {0: 2**63}, {"": 2**63}, 0, 0, 0)),
    }
    plain = {
        "empty": b"",
        "torn-header": first[:10],
        "flipped": first[:-1] + b"?",
        "flipped-before-a-good-one": b"?" + first + second,
        "many-magics": MAGIC * 400,
        "a-block-in-a-bad-one": first[:20] + first,
    }
    return {name: REPAIRED + data for name, data in repaired.items()} | {
        name: AS_IT_IS + data for name, data in plain.items()
    }


def manifests() -> dict[str, bytes]:
    """Return valid and damaged manifests."""
    full = msgspec.json.encode(Manifest(3, 3, 9, 99, [], {"p": (4, 98)}))
    segment = (
        b'{"first":0,"next":2,"segments":[{"first":0,"last":1,"size":9,"first_time":1,'
        b'"last_time":2,"first_ingest":3,"last_ingest":4,"checksum":5}]}'
    )
    repaired = {"full": full, "empty": b"{}", "missing-segment": segment, "version": full + b" "}
    plain = {"nothing": b"", "cut": full[:30], "nested": b"[" * 1500, "checksum": b'{"checksum":1}'}
    return {name: REPAIRED + data for name, data in repaired.items()} | {
        name: AS_IT_IS + data for name, data in plain.items()
    }
