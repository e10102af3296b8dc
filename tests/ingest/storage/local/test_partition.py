"""One partition: recovery from any torn tail, rolling with a crash at any step, and reading."""

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aqueduct.ingest.errors import CorruptFile, IngestError, UnknownTopic
from aqueduct.ingest.storage.local import files, manifest, partition, recovery, segments, wal
from aqueduct.ingest.storage.local.manifest import NAME, read_manifest
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.wal import BlockMetadata
from tests.ingest.storing import Crash, chunk_of, crash, fill, rows_of


def settled(directory: Path, number: int, *, read_only: bool = False) -> Partition:
    """Return a partition, recovered as the only one of its topic."""
    part = Partition(directory, number, read_only=read_only)
    if not part.fault:
        part.settle()
    return part


def append(part: Partition, count: int = 3, group: int = 0, time: int = 1_000) -> None:
    """Store rows with their offsets as values."""
    first = part.next_offset
    offsets = range(first, first + count)
    metadata = BlockMetadata(
        group or first + 1, {0: first}, {"p": offsets[-1] + 1}, time + first, 1, 2
    )
    values = [b"value %d" % (each + 1) for each in offsets]
    part.stage([chunk_of("p", [each + 1 for each in offsets], values, [5] * count)], metadata)
    part.write()
    part.sync()
    part.seal()


def check_whole(part: Partition, count: int) -> None:
    """Check that all rows are stored, once and in order."""
    assert part.fault == ""
    rows = rows_of(part)
    assert [row["producer_sequence"] for row in rows] == list(range(1, count + 1))
    assert [row["value"] for row in rows] == [b"value %d" % each for each in range(1, count + 1)]
    if count:
        assert part.producers["p"][0] == count


def made(directory: Path, blocks: int = 3) -> Path:
    """Return a partition with a log of some blocks, and the log."""
    directory.mkdir(exist_ok=True)
    part = settled(directory, 0)
    for _ in range(blocks):
        append(part)
    part.close()
    (path,) = directory.glob("*.wal")
    return path


def test_a_log_torn_at_any_byte_is_truncated_and_continued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    path = made(tmp_path)
    good = path.read_bytes()
    last = len(good) // 3 * 2
    for size in range(last + 1, len(good)):
        caplog.clear()
        for each in tmp_path.iterdir():
            each.unlink()
        fill(path, good[:size])
        part = settled(tmp_path, 0)
        check_whole(part, 6)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith(f"{path}, byte {last}: {size - last} bytes cut off")
        if size % 40 == 0:
            append(part)
            part.close()
            check_whole(settled(tmp_path, 0), 9)
        part.close()


def test_a_log_cut_between_blocks_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = made(tmp_path)
    data = path.read_bytes()
    fill(path, data[: len(data) // 3 * 2])
    check_whole(settled(tmp_path, 0), 6)
    assert not caplog.records


def test_a_flipped_byte_puts_the_partition_out_of_use_or_cuts_the_last_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path = made(tmp_path)
    good = path.read_bytes()
    last = len(good) // 3 * 2
    for at in range(0, len(good), 3):
        fill(path, good[:at] + bytes((good[at] ^ 0x40,)) + good[at + 1 :])
        part = settled(tmp_path, 0)
        if at >= last:
            check_whole(part, 6)
            continue
        assert part.fault.startswith(f"{path}, byte {at // (last // 2) * (last // 2)}: ")
        with pytest.raises(IngestError, match="t partition 0 is out of use"):
            part.check_range("t", 0, 1)
        with pytest.raises(IngestError, match="out of use"):
            list(part.read(0, 1))
        with pytest.raises(IngestError, match="out of use"):
            part.offset_at(0)
        assert part.info().fault == part.fault


def test_a_torn_tail_of_a_log_before_the_last_is_damage(tmp_path: Path) -> None:
    path = made(tmp_path)
    part = settled(tmp_path, 0)
    append(part)
    part.close()
    data = path.read_bytes()
    fill(path, data[:-1])
    assert f"{path}, byte {len(data) // 3 * 2}: a block is cut short" in settled(tmp_path, 0).fault


def test_a_log_that_is_missing_in_between_is_damage(tmp_path: Path) -> None:
    path = made(tmp_path)
    part = settled(tmp_path, 0)
    append(part)
    part.close()
    path.unlink()
    assert "a block begins at offset 9, not at 0" in settled(tmp_path, 0).fault


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ((0, 0), "begins at offset 0, not at 3"),
        ((0, 1, 1), "begins at offset 3, not at 6"),
        ((1, 0), "begins at offset 3, not at 0"),
        ((0, 2), "begins at offset 6, not at 3"),
    ],
)
def test_duplicate_or_reordered_blocks_are_damage(
    tmp_path: Path, order: tuple[int, ...], reason: str
) -> None:
    path = made(tmp_path)
    data = path.read_bytes()
    size = len(data) // 3
    fill(path, b"".join(data[at * size : (at + 1) * size] for at in order))
    assert reason in settled(tmp_path, 0).fault


def test_a_block_of_another_partition_is_damage(tmp_path: Path) -> None:
    path = made(tmp_path)
    assert settled(tmp_path, 1).fault == f"{path}, byte 0: a block that is not of partition 1"


def test_a_file_that_cannot_be_read_puts_the_partition_out_of_use(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert settled(tmp_path, 0).fault == f"{tmp_path / NAME}: Is a directory"


def test_recovery_syncs_the_log_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path)
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}"))
    )
    settled(tmp_path, 0)
    assert synced == [str(path)]
    synced.clear()
    settled(tmp_path, 0, read_only=True)
    assert synced == []


# A crash at each step of a roll


def after(call: Callable[..., Any]) -> Callable[..., Any]:
    def crashes(*arguments: Any) -> None:
        call(*arguments)
        raise Crash

    return crashes


ROLL_STEPS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "before the segment": (partition, "write_segment", crash),
    "before the rename of the segment": (os, "replace", crash),
    "after the rename of the segment": (os, "replace", after(os.replace)),
    "after the segment": (partition, "write_segment", after(segments.write_segment)),
    "before the manifest": (partition, "write_manifest", crash),
    "after the manifest": (partition, "write_manifest", after(manifest.write_manifest)),
    "before the log goes": (partition, "remove_files", crash),
    "after the log went": (partition, "remove_files", after(files.remove_files)),
}


@pytest.mark.parametrize("step", ROLL_STEPS)
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_crash_in_a_roll_loses_and_duplicates_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, earlier: int
) -> None:
    part = settled(tmp_path, 0)
    for _ in range(earlier):
        append(part)
        part.rotate()
        part.roll()
    append(part)
    append(part)
    part.rotate()
    append(part)
    count = (earlier + 3) * 3
    monkeypatch.setattr(*ROLL_STEPS[step])
    with pytest.raises(Crash):
        part.roll()
    monkeypatch.undo()
    part.close()
    part = settled(tmp_path, 0)
    check_whole(part, count)
    append(part)
    part.rotate()
    part.roll()
    check_whole(part, count + 3)
    part.close()
    check_whole(settled(tmp_path, 0), count + 3)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {NAME, *(segment.name for segment in read_manifest(tmp_path).segments)}


def test_a_roll_that_fails_on_a_full_disk_can_be_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = settled(tmp_path, 0)
    append(part)
    part.rotate()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for where, what in ((os, "fsync"), (partition, "write_manifest")):
        monkeypatch.setattr(where, what, full)
        with pytest.raises(OSError, match="No space"):
            part.roll()
        monkeypatch.undo()
        check_whole(part, 3)
    part.roll()
    assert part.rolled == 1
    check_whole(part, 3)
    assert not list(tmp_path.glob("*.wal"))


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / ".manifest.json.tmp").write_bytes(b"half")
    (tmp_path / ".a.parquet.tmp").write_bytes(b"half")
    check_whole(settled(tmp_path, 0), 9)
    assert not list(tmp_path.glob(".*"))


def rolled(directory: Path, count: int = 2) -> Partition:
    part = settled(directory, 0)
    for _ in range(count):
        append(part)
        part.rotate()
        part.roll()
    return part


def test_segments_without_a_manifest_are_kept_and_the_partition_is_out_of_use(
    tmp_path: Path,
) -> None:
    rolled(tmp_path)
    (tmp_path / NAME).unlink()
    part = settled(tmp_path, 0)
    assert (
        "no manifest names this segment, and the log that it was made from does not exist"
        in part.fault
    )
    assert len(list(tmp_path.glob("*.parquet"))) == 2


@pytest.mark.parametrize("damage", ["missing", "cut", "longer"])
def test_a_segment_of_another_size_is_detected_at_start(tmp_path: Path, damage: str) -> None:
    part = rolled(tmp_path)
    path = tmp_path / part.manifest.segments[1].name
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(data[:-9] if damage == "cut" else data + b"more")
    assert settled(tmp_path, 0).fault.startswith(f"{path}, byte ")


def test_a_flipped_byte_in_a_segment_is_never_read_as_rows(tmp_path: Path) -> None:
    rolled(tmp_path)
    path = sorted(tmp_path.glob("*.parquet"))[0]
    good = path.read_bytes()
    for at in range(0, len(good), 37):
        fill(path, good[:at] + bytes((good[at] ^ 0x02,)) + good[at + 1 :])
        part = settled(tmp_path, 0)
        with pytest.raises(CorruptFile, match="checksum of the segment"):
            list(part.read(0, 6))
        assert sum(batch.num_rows for batch in part.read(3, 6)) == 3


# Reading


def test_any_range_over_segments_and_logs_can_be_read(tmp_path: Path) -> None:
    part = rolled(tmp_path)
    append(part)
    part.rotate()
    append(part)
    append(part)
    for start in range(16):
        for end in range(start, 16):
            batches = list(part.read(start, end))
            found = [each for batch in batches for each in batch.column("offset").to_pylist()]
            assert found == list(range(start, end))


def test_a_missing_range_is_rejected_with_the_existing_one(tmp_path: Path) -> None:
    part = rolled(tmp_path)
    part.drop_before(3)
    part.check_range("t", 3, 6)
    for start, end in ((2, 4), (3, 7), (5, 4), (-1, 3)):
        with pytest.raises(UnknownTopic, match=r"t partition 0 has offsets from 3 up to 6, not"):
            part.check_range("t", start, end)
    with pytest.raises(UnknownTopic, match="offset 0 was removed; 3 is the first left"):
        list(part.read(0, 6))


def test_an_offset_is_found_by_time_in_segments_and_logs(tmp_path: Path) -> None:
    part = settled(tmp_path, 0)
    append(part)
    append(part)
    part.rotate()
    part.roll()
    append(part)
    append(part)
    times = {0: 0, 1_000: 0, 1_001: 3, 1_003: 3, 1_004: 6, 1_006: 6, 1_009: 9, 1_010: 12}
    assert {time: part.offset_at(time) for time in times} == times
    assert {time: settled(tmp_path, 0).offset_at(time) for time in times} == times


def test_reading_continues_when_a_log_becomes_a_segment(tmp_path: Path) -> None:
    part = settled(tmp_path, 0)
    for _ in range(3):
        append(part)
        part.rotate()
    reading = part.read(0, 9)
    found = next(reading).column("offset").to_pylist()
    part.roll()
    assert part.rolled == 3
    for batch in reading:
        found += batch.column("offset").to_pylist()
    assert found == list(range(9))


def test_a_directory_reader_continues_in_the_segment_of_a_log(tmp_path: Path) -> None:
    part = settled(tmp_path, 0)
    append(part)
    append(part)
    part.rotate()
    append(part)
    looking = settled(tmp_path, 0, read_only=True)
    part.roll()
    check_whole(looking, 9)


def test_a_directory_reader_retries_if_a_log_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = settled(tmp_path, 0)
    append(part)
    part.rotate()
    append(part)
    scan = wal.Scan

    def scan_late(path: Path) -> Any:
        part.roll()
        return scan(path)

    monkeypatch.setattr(recovery, "Scan", scan_late)
    check_whole(settled(tmp_path, 0, read_only=True), 6)


def test_a_removed_file_is_damage_and_is_not_retried(tmp_path: Path) -> None:
    part = rolled(tmp_path)
    append(part)
    for path in (*tmp_path.glob("*.parquet"), *tmp_path.glob("*.wal")):
        path.unlink()
    for start in (0, 3, 6):
        with pytest.raises(CorruptFile, match="the file is missing"):
            list(part.read(start, start + 1))


def test_a_file_that_cannot_be_opened_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = rolled(tmp_path)
    append(part)

    def too_many(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", too_many)
    with pytest.raises(IngestError, match=r"\d\.wal could not be read: Too many open files"):
        list(part.read(6, 9))
    monkeypatch.undo()
    check_whole(part, 9)


def test_a_directory_reader_changes_nothing(tmp_path: Path) -> None:
    path = made(tmp_path)
    fill(path, path.read_bytes()[:-4])
    (tmp_path / ".manifest.json.tmp").write_bytes(b"half")
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    check_whole(settled(tmp_path, 0, read_only=True), 6)
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_directory_reader_misses_no_rows_of_a_log_that_rolls_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = settled(tmp_path, 0)
    for _ in range(3):
        append(part)
    part.rotate()
    manifests = []

    def read(directory: Path) -> manifest.Manifest:
        manifests.append(read_manifest(directory))
        if len(manifests) == 2:
            part.roll()
            assert list(directory.glob("*.wal")) == []
        return manifests[-1]

    monkeypatch.setattr(recovery, "read_manifest", read)
    check_whole(settled(tmp_path, 0, read_only=True), 9)
    assert len(manifests) > 2


def test_readers_see_dense_rows_while_a_writer_commits_and_rolls(tmp_path: Path) -> None:
    part = settled(tmp_path, 0)
    append(part)
    done = threading.Event()
    faults: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                end = part.next_offset
                start = max(0, end - 200)
                part.check_range("t", start, end)
                rows = [row for batch in part.read(start, end) for row in batch.to_pylist()]
                assert [row["offset"] for row in rows] == list(range(start, end))
                assert all(row["value"] == b"value %d" % (row["offset"] + 1) for row in rows)
                assert start <= part.offset_at(1_000 + start) <= end
        except BaseException as error:  # noqa: BLE001 -- shown below
            faults.append(error)

    def roll() -> None:
        try:
            while not done.is_set():
                part.roll()
        except BaseException as error:  # noqa: BLE001 -- shown below
            faults.append(error)

    threads = [threading.Thread(target=target) for target in (read, read, roll)]
    for thread in threads:
        thread.start()
    for number in range(150):
        append(part)
        if number % 3 == 0:
            part.rotate()
    done.set()
    for thread in threads:
        thread.join()
    assert not faults
    part.rotate()
    part.roll()
    check_whole(part, 453)


# Producers


def test_a_forgotten_producer_leaves_the_manifest_at_the_next_roll(tmp_path: Path) -> None:
    part = rolled(tmp_path)
    assert set(read_manifest(tmp_path).producers) == {"p"}
    part.forget(["p", "unknown"])
    part.roll()
    assert read_manifest(tmp_path).producers == {}
    assert settled(tmp_path, 0).producers == {}
    append(part)
    assert part.producers["p"][0] == 9


def test_a_roll_takes_only_logs_that_were_finished_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = settled(tmp_path, 0)
    append(part)
    part.rotate()
    write = segments.write_segment

    def busy(path: Path, batches: Any) -> tuple[int, int]:
        append(part)
        part.rotate()
        return write(path, batches)

    monkeypatch.setattr(partition, "write_segment", busy)
    part.roll()
    assert part.rolled == 1
    assert len(part.manifest.segments) == 1


def test_a_partition_tracks_the_size_of_its_segments(tmp_path: Path) -> None:
    part = rolled(tmp_path, 3)
    for each in (part, settled(tmp_path, 0)):
        assert each.segments_size == sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    list(part.read(0, part.next_offset))
    assert len(part._sound) == 3
    part.drop_before(6)
    assert part.segments_size == sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    assert len(part._sound) == 1


def test_nothing_is_changed_before_a_partition_is_settled(tmp_path: Path) -> None:
    path = made(tmp_path)
    fill(path, path.read_bytes()[:-1])
    (tmp_path / ".left.tmp").touch()
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    part = Partition(tmp_path, 0)
    check_whole(part, 6)
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
    part.settle()
    assert part.torn is None
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_size == part.info().size
