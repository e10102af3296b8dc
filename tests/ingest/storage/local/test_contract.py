"""Local storage passes the contract of the storage seam."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aqueduct.ingest.storage.base import Group, Storage, TopicStorage
from aqueduct.ingest.storage.local import topic_storage
from aqueduct.ingest.storage.local.partition import Partition
from aqueduct.ingest.storage.local.storage import LocalStorage
from aqueduct.ingest.storage.local.topic_storage import LocalTopicStorage
from tests.ingest.storage.contract import Backend, StorageContract
from tests.ingest.storing import Crash, crash


def nth(call: Callable[..., Any], number: int, instead: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that behaves differently at its nth call."""
    calls = iter(range(1, 1_000))
    return lambda *arguments: (instead if next(calls) == number else call)(*arguments)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def half_a_block(file: int, views: list[memoryview], position: int) -> int:
    data = b"".join(views)
    os.pwrite(file, data[: len(data) // 2], position)
    raise Crash


class LocalBackend(Backend):
    """A directory."""

    crash_points = ("block 1", "block 2", "block 3", "sync", "visible 1", "visible 3")

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._monkeypatch = monkeypatch

    def open(self) -> Storage:
        return LocalStorage(self._directory)

    def kill(self, storage: Storage, topic: TopicStorage) -> None:
        assert isinstance(topic, LocalTopicStorage)
        storage.close()
        for part in topic.partitions:  # the system closes their files
            part.close()

    def die_in_append(self, topic: TopicStorage, group: Group, point: str) -> None:
        with self._monkeypatch.context() as patch:
            if point == "sync":
                patch.setattr(topic_storage, "wait", crash)
            elif point.startswith("block"):
                patch.setattr(os, "pwritev", nth(os.pwritev, int(point[-1]), half_a_block))
            else:
                patch.setattr(Partition, "seal", nth(Partition.seal, int(point[-1]), crash))
            with pytest.raises(Crash):
                topic.append(group)

    def fail_append(self, topic: TopicStorage, group: Group) -> None:
        with self._monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", nth(os.pwritev, 2, full))
            topic.append(group)

    def lose_answer(self, topic: TopicStorage, group: Group) -> None:
        with self._monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", nth(os.fdatasync, 2, broken))
            topic.append(group)


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def backend(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
        return LocalBackend(tmp_path / "data", monkeypatch)
