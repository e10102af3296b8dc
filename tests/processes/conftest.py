"""Each test here has a time limit that even a busy loop cannot ignore, and its own certificates."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.processes import peers

HARD_LIMIT = 150.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module with ``SCHEMES`` once over each transport."""
    schemes = getattr(metafunc.module, "SCHEMES", None)
    if schemes is not None:
        names = [scheme.removesuffix("://") for scheme in schemes]
        metafunc.parametrize("scheme", schemes, indirect=True, ids=names)


@pytest.fixture(autouse=True)
def scheme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have servers listen on addresses with this scheme."""
    chosen: str = getattr(request, "param", "")
    monkeypatch.setattr(peers, "SCHEME", chosen)
    return chosen


@pytest.fixture(scope="session", autouse=True)
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("certificates")
    before = os.environ.get("AQUEDUCT_DEV_DIR")
    os.environ["AQUEDUCT_DEV_DIR"] = str(directory)
    yield directory
    if before is None:
        del os.environ["AQUEDUCT_DEV_DIR"]
    else:
        os.environ["AQUEDUCT_DEV_DIR"] = before


@pytest.fixture(autouse=True)
def hard_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test did not end within {HARD_LIMIT:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, HARD_LIMIT)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
