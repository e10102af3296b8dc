"""Permissions of stored files: readable by owner and group, unless configured otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from aqueduct.ingest.server.owners import KEY
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.ingest.server.topic import Topic
from aqueduct.ingest.storage.local.file_modes import check_mode, create, exposed, settle_modes
from tests.ingest.lab import Lab
from tests.ingest.storing import advance, open_store, opened, records, rolled, stored


@pytest.fixture(autouse=True, params=[0o022, 0o000, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """Return the modes of everything in a directory."""
    return {
        path.relative_to(directory).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in directory.rglob("*")
    }


def fill(directory: Path) -> None:
    """Create a file of every kind."""
    with opened(directory) as store:
        stored(store, records(1, 3, partition=0))
        rolled(store)
        stored(store, records(4, 3, partition=0))
        advance(store.topics["t"], "r", {0: 1})
        store.end_step("t", "job", 0, "0" * 32)


def test_all_new_files_are_private(tmp_path: Path, umask: int) -> None:
    fill(tmp_path / "data")
    found = modes(tmp_path)
    names = {Path(name).name.rpartition(".")[2] for name in found}
    assert {"parquet", "wal", "json", "lock"} <= names
    assert {name: f"{mode:o}" for name, mode in found.items() if mode & (0o027 | umask)} == {}
    assert exposed(tmp_path / "data") == []


async def test_a_server_with_tokens_creates_no_public_file(lab: Lab) -> None:
    tokens = Permissions({"a-token-of-20-letters": Grant(["*"], ["*"])})
    async with (
        lab.serve(partitions=1, permissions=tokens) as server,
        lab.producer(server, token="a-token-of-20-letters") as producer,
    ):
        await producer.send_and_wait(b"x")
    assert exposed(lab.directory) == []
    assert (lab.directory / KEY).stat().st_mode & 0o777 == 0o600


def test_modes_of_an_older_version_are_tightened_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path)
    everything = [tmp_path / "t", *(tmp_path / "t").rglob("*")]
    for path in everything:
        path.chmod(0o755 if path.is_dir() else 0o644)
    beside = tmp_path / "not a topic"
    beside.mkdir(mode=0o700)
    beside.chmod(0o755)
    with opened(tmp_path):
        pass
    assert not any(mode & 0o007 for name, mode in modes(tmp_path).items() if name != beside.name)
    assert beside.stat().st_mode & 0o777 == 0o755
    warning = (
        f"changed the permissions of {len(everything)} files and directories to those of mode 750"
    )
    assert caplog.text.count(warning) == 1
    caplog.clear()
    with opened(tmp_path) as store:
        stored(store, records(7, 3))
    assert "permissions" not in caplog.text


def test_mode_755_makes_topics_world_readable_and_not_writable(tmp_path: Path) -> None:
    fill(tmp_path)
    store = open_store(tmp_path, mode=0o755)
    stored(store, records(7, 3))
    stored(store, records(1, 3), topic="new")
    rolled(store)
    store.close()
    for topic in ("t", "new"):
        for name, mode in modes(tmp_path / topic).items():
            assert mode == (0o755 if (tmp_path / topic / name).is_dir() else 0o644), name


@pytest.mark.parametrize("mode", [0o700, 0o755])
async def test_topics_are_reachable_with_the_configured_mode(lab: Lab, mode: int) -> None:
    for _ in range(2):  # a new directory, and an existing one
        async with lab.serve(directory_mode=mode) as server, lab.producer(server) as producer:
            await producer.send_and_wait(b"x")
        for path in (lab.directory, lab.directory / "topic", lab.directory / "topic" / "part=0"):
            assert path.stat().st_mode & 0o7777 == mode, path
        lab.directory.chmod(0o750)


async def test_directories_keep_their_setgid_bit(lab: Lab) -> None:
    lab.directory.mkdir(exist_ok=True)
    lab.directory.chmod(0o2750)
    for mode in (None, None, 0o755):
        async with lab.serve(directory_mode=mode) as server, lab.producer(server) as producer:
            await producer.send_and_wait(b"x")
        for path in (lab.directory, lab.directory / "topic", lab.directory / "topic" / "part=0"):
            assert path.stat().st_mode & 0o2000, path


@pytest.mark.parametrize("mode", [0, 0o644, 0o077, 0o770, 0o777, 0o1755])
def test_an_unusable_mode_is_an_error(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ValueError, match=r"invalid directory mode .* use 700, 750 or 755"):
        open_store(tmp_path, mode=mode)
    assert [check_mode(each) for each in (0o700, 0o750, 0o755)] == [0o700, 0o750, 0o755]


def test_a_mode_that_cannot_be_changed_is_logged_and_the_topic_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    (tmp_path / "t").chmod(0o755)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "chmod", refuse)
        patch.setattr(os, "fchmod", refuse)
        settle_modes(tmp_path / "t", 0o750, exact=False)
        os.close(create(tmp_path / "t" / "file", os.O_RDWR | os.O_CREAT))
    assert "permissions unchanged, other users may read it" in caplog.text
    with opened(tmp_path) as store:
        assert isinstance(store.topics["t"], Topic)


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    topic = tmp_path / "t"
    topic.mkdir()
    topic.chmod(0o755)
    (topic / "link").symlink_to(outside)
    settle_modes(topic, 0o750, exact=False)
    assert outside.stat().st_mode & 0o777 == 0o644
