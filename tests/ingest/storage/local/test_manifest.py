"""Small files with a checksum: read as written, or detected as damaged."""

import os
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aqueduct.ingest.errors import CorruptFile
from aqueduct.ingest.storage.local.files import read_checked, remove_files, write_checked
from aqueduct.ingest.storage.local.manifest import (
    NAME,
    Manifest,
    Segment,
    read_manifest,
    write_manifest,
)
from tests.ingest.storing import fill

SEGMENTS = [Segment(5, 9, 100, 1, 2, 3, 4, 5), Segment(10, 10, 50, 6, 7, 8, 9, 10)]
FULL = Manifest(5, 11, 3, 99, SEGMENTS, {"p": (4, 98), "ü": (1, 99)})


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_manifest(tmp_path, FULL)
    assert read_manifest(tmp_path) == FULL
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_no_manifest_is_an_empty_one(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == Manifest()


def test_any_flipped_bit_and_any_truncation_is_detected(tmp_path: Path) -> None:
    write_manifest(tmp_path, FULL)
    path = tmp_path / NAME
    good = path.read_bytes()
    for at in range(len(good)):
        for bit in (0, 5):
            fill(path, good[:at] + bytes((good[at] ^ 1 << bit,)) + good[at + 1 :])
            with pytest.raises(CorruptFile) as caught:
                read_manifest(tmp_path)
            assert caught.value.path == path
        fill(path, good[:at])
        with pytest.raises(CorruptFile):
            read_manifest(tmp_path)


@given(st.binary(max_size=200) | st.text('[]{}":,0123456789checksumont\\u', max_size=80))
@example(b"[" * 100_000)
@example(b'{"checksum":0,"content":' + b"[" * 100_000)
@example(b'{"checksum":' + b"9" * 5_000 + b"}")
@example(b'{"checksum":1,"content":"\xff\xfe"}')
def test_random_bytes_are_never_a_manifest(
    tmp_path_factory: pytest.TempPathFactory, data: bytes | str
) -> None:
    directory = tmp_path_factory.getbasetemp()
    (directory / NAME).write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(CorruptFile):
        read_manifest(directory)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Manifest(version=2), "version 2, not 1"),
        (Manifest(first=-1, next=-1), "the first offset is -1"),
        (Manifest(first=4, next=11, segments=SEGMENTS), "does not begin at 4"),
        (Manifest(first=5, next=12, segments=SEGMENTS), "end at 11, not at 12"),
        (Manifest(first=5, next=11, segments=SEGMENTS[::-1]), "does not begin at 5"),
        (Manifest(first=5, next=5, segments=[Segment(5, 4, 0, 0, 0, 0, 0, 0)]), "does not begin"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_damage(
    tmp_path: Path, wrong: Manifest, reason: str
) -> None:
    write_manifest(tmp_path, wrong)
    with pytest.raises(CorruptFile, match=reason):
        read_manifest(tmp_path)


def test_content_of_another_kind_is_damage_whatever_its_checksum(tmp_path: Path) -> None:
    for body in (b"[]", b'"text"', b'{"first":"one"}', b"[" * 5_000 + b"]" * 5_000):
        data = b'{"checksum":%d,"content":%b}' % (zlib.crc32(body), body)
        (tmp_path / NAME).write_bytes(data)
        with pytest.raises(CorruptFile, match="not a manifest"):
            read_manifest(tmp_path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_checked(path, {"a": 1})

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_checked(path, {"a": 2})
    monkeypatch.undo()
    assert read_checked(path, dict[str, int], "numbers") == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_synced_before_its_name_and_its_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    fsync, swap = os.fsync, os.replace

    def noted_fsync(file: int) -> None:
        steps.append("directory" if Path(f"/proc/self/fd/{file}").is_dir() else "file")
        fsync(file)

    def noted_swap(old: Path, new: Path) -> None:
        steps.append("rename")
        swap(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_swap)
    write_manifest(tmp_path, FULL)
    assert steps == ["file", "rename", "directory"]


def test_removing_a_missing_file_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    remove_files([tmp_path / "a", tmp_path / "b"])
    assert not list(tmp_path.iterdir())


def test_a_manifest_is_json(tmp_path: Path) -> None:
    write_manifest(tmp_path, FULL)
    found = msgspec.json.decode((tmp_path / NAME).read_bytes())
    assert found["content"]["producers"]["p"] == [4, 98]
