"""The journal of jobs: changes survive, whatever a crash leaves of the last line."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import pytest

from aqueduct.ingest.dedup import journal as journals
from aqueduct.ingest.dedup.journal import Journal
from aqueduct.ingest.dedup.scope import Job
from aqueduct.ingest.errors import CorruptFile, IngestError
from aqueduct.ingest.identity import History
from aqueduct.ingest.storage.local.files import write_checked
from aqueduct.ingest.storage.local.topic_storage import LocalTopicStorage, create_topic
from tests.ingest.jobbing import RUNS
from tests.ingest.storing import fill


def job(step: int) -> Job:
    return Job(step, [RUNS[0]], False, {0: step}, step)


def journal_in(directory: Path) -> Journal:
    """Return the journal of an empty topic."""
    create_topic(directory, 1, History(), None)
    return Journal(LocalTopicStorage(directory, read_only=True))


class Jobs:
    """Jobs that are journaled one after the other."""

    def __init__(self, directory: Path) -> None:
        self.journal = journal_in(directory)
        self.jobs = self.journal.read()

    def put(self, **changes: Job | None) -> None:
        wanted = {**self.jobs, **changes}
        self.jobs = {name: each for name, each in wanted.items() if each is not None}
        self.journal.write(changes, self.jobs)


def read(directory: Path) -> dict[str, Job]:
    return journal_in(directory).read()


def test_changes_are_read_as_they_were_written(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.put(a=job(1))
    jobs.put(a=job(2), b=job(7))
    jobs.put(b=None, c=job(3))
    assert read(tmp_path) == jobs.jobs == {"a": job(2), "c": job(3)}
    again = Jobs(tmp_path)
    again.put(a=job(5))
    assert read(tmp_path) == {"a": job(5), "c": job(3)}
    for each in (jobs, again):
        each.journal.close()


def test_a_truncated_last_line_is_ignored_and_replaced(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.put(a=job(1))
    before = jobs.journal.path.stat().st_size
    jobs.put(a=job(2))
    jobs.journal.close()
    whole = jobs.journal.path.read_bytes()
    for size in range(before, len(whole)):
        fill(jobs.journal.path, whole[:size])
        found = Jobs(tmp_path)
        assert found.jobs == {"a": job(1)}
        found.put(b=job(3))
        assert read(tmp_path) == {"a": job(1), "b": job(3)}


def test_a_page_lost_in_a_crash_costs_only_the_last_change(
    tmp_path: Path,
) -> None:
    jobs = Jobs(tmp_path)
    jobs.put(a=job(1), b=job(1))
    before = jobs.journal.path.stat().st_size
    jobs.put(a=job(2), b=job(2), c=job(2))  # one write, of which a page is lost below
    jobs.journal.close()
    whole = jobs.journal.path.read_bytes()
    half = before + (len(whole) - before) // 2
    for lost in (range(before, half), range(half, len(whole)), range(before, before + 20)):
        fill(jobs.journal.path, bytes(0 if at in lost else whole[at] for at in range(len(whole))))
        assert read(tmp_path) == {"a": job(1), "b": job(1)}


def test_a_flipped_bit_in_the_last_line_is_damage_too(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.put(a=job(1))
    before = jobs.journal.path.stat().st_size
    jobs.put(a=job(2))
    jobs.journal.close()
    whole = jobs.journal.path.read_bytes()
    for at in range(before, len(whole) - 1):
        fill(jobs.journal.path, flipped(whole, at))
        with pytest.raises(CorruptFile, match=r"jobs\.log, byte \d+: "):
            read(tmp_path)


def test_a_bad_line_before_the_last_is_damage(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    for step in range(3):
        jobs.put(a=job(step))
    jobs.journal.close()
    whole = jobs.journal.path.read_bytes()
    first, second, *_ = whole.splitlines(keepends=True)
    for data, fault in (
        (flipped(whole, 12), "byte 0: the checksum of a job is wrong"),
        (flipped(whole, len(first) + 12), f"byte {len(first)}: the checksum of a job is wrong"),
        (b"", "byte 0: the first line is not that of a journal of jobs"),
        (first[:-5], "byte 0: the first line is not"),
        (first, f"byte {len(first)}: the file is truncated: jobs are missing"),
        (first + second[:-3], f"byte {len(first)}: the file is truncated: jobs are missing"),
        (first + b"%08x {}\n" % zlib.crc32(b"{}"), "not a journal entry"),
        (b"00000000 {}\n", "byte 0: the checksum of a job is wrong"),
    ):
        fill(jobs.journal.path, data)
        with pytest.raises(CorruptFile, match=rf"jobs\.log, byte \d+: .*{fault.split(': ')[-1]}"):
            read(tmp_path)


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def test_a_long_journal_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SLACK", 2_000)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    jobs = Jobs(tmp_path)
    for step in range(1_000):
        jobs.put(a=job(step))
        assert jobs.journal.path.stat().st_size < 3_000
    jobs.journal.close()
    assert read(tmp_path) == {"a": job(999)}


def test_a_change_that_could_not_be_written_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    jobs = Jobs(tmp_path)
    jobs.put(a=job(1))
    for broken in ("pwrite", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, full)
            with pytest.raises(IngestError, match="No space"):
                jobs.put(a=job(2))
        assert read(tmp_path) == {"a": job(1)}
        jobs.jobs = {"a": job(1)}
        jobs.put(b=job(1))
        assert read(tmp_path) == {"a": job(1), "b": job(1)}
        jobs.put(b=None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: 3)
        with pytest.raises(IngestError, match="only 3 of"):
            jobs.put(a=job(3))
    jobs.journal.close()


def test_the_file_of_earlier_versions_is_read_and_replaced(tmp_path: Path) -> None:
    former = tmp_path / "jobs.json"
    write_checked(former, {"a": job(4), "b": job(5)})
    jobs = Jobs(tmp_path)
    assert jobs.jobs == {"a": job(4), "b": job(5)}
    assert former.exists()
    jobs.put(a=job(6))
    assert not former.exists()
    assert read(tmp_path) == {"a": job(6), "b": job(5)}
