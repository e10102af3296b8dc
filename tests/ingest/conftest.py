"""Certificates for servers on this host, and who trusts them; a time limit for every test."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from aqueduct.quic.tls import ServerTLS, Trust, make_authority, make_certificate, trust

HARD_LIMIT = 120.0

if sys.platform != "linux":
    # What an open file is called is read from /proc.
    collect_ignore_glob = ["test_crashes.py"]


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
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test did not end within {HARD_LIMIT:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, HARD_LIMIT)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
