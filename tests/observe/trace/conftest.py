from __future__ import annotations

from pathlib import Path

import pytest

from tests.observe.trace.recorded import Conversation, record


@pytest.fixture(scope="session")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Conversation]:
    """Return the directory in which both ends of a conversation recorded it."""
    directory = tmp_path_factory.mktemp("trace")
    return directory, record(directory / "client", directory / "server")


@pytest.fixture(scope="session")
def recorded(conversation: tuple[Path, Conversation]) -> Path:
    directory, _ = conversation
    both = directory / "both"
    both.mkdir()
    for side in ("client", "server"):
        for path in (directory / side).iterdir():
            (both / path.name).write_bytes(path.read_bytes())
    return both
