"""Each test here has a time limit that even a busy loop cannot ignore, and its own certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.isolation import own_certificates, time_limit
from tests.processes import peers


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
    with own_certificates(directory):
        yield directory


@pytest.fixture(autouse=True)
def hard_limit() -> Iterator[None]:
    with time_limit():
        yield
