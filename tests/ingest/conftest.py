"""Certificates of servers on this host and their trust; a time limit for every test."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aqueduct.ingest.server.server import IngestServer
from aqueduct.security import ServerTLS, Trust, make_authority, make_certificate, trust
from tests.ingest.lab import Lab
from tests.isolation import HARD_LIMIT, time_limit

if sys.platform != "linux":
    # The name of an open file is read from /proc.
    collect_ignore_glob = ["test_crashes.py", "test_job_crashes.py"]


@pytest.fixture(scope="session")
def authority() -> ServerTLS:
    return make_authority("tests of ingest")


@pytest.fixture(scope="session")
def tls(authority: ServerTLS) -> ServerTLS:
    return make_certificate(["127.0.0.1", "localhost"], authority)


@pytest.fixture(scope="session")
def trusted(authority: ServerTLS) -> Trust:
    return trust(authority.certificate)


@pytest.fixture(autouse=True)
def hard_limit() -> Iterator[None]:
    with time_limit(HARD_LIMIT):
        yield


@pytest.fixture
def lab(tmp_path: Path, tls: ServerTLS, trusted: Trust) -> Lab:
    return Lab(tmp_path / "data", tls, trusted)


class Held:
    """Blocks a server's writer until `release`."""

    def __init__(self) -> None:
        self._go = threading.Event()
        self.is_reached = False

    def hold(self, server: IngestServer) -> None:
        server._writer.submit(self._wait)

    def _wait(self) -> None:
        self.is_reached = True
        self._go.wait(HARD_LIMIT)

    def release(self) -> None:
        self._go.set()


@pytest.fixture
def held() -> Iterator[Held]:
    holding = Held()
    yield holding
    holding.release()
