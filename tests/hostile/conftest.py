"""Each test here has a time limit that even a busy loop cannot ignore, and its own certificates."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import isolation
from tests.isolation import own_certificates, time_limit

HARD_LIMIT = isolation.HARD_LIMIT + float(os.environ.get("CAMPAIGN_SECONDS", "0"))

if sys.platform != "linux":
    # Memory is read from /proc.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("certificates")
    with own_certificates(directory):
        yield directory


@pytest.fixture(autouse=True)
def hard_limit() -> Iterator[None]:
    with time_limit(HARD_LIMIT):
        yield
