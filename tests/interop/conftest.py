"""Our server, for the client of another implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import aqueduct

LIMIT = 120.0


@pytest.fixture(autouse=True)
def own_certificates(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.getbasetemp() / "interop-certificates"
    Path(directory).mkdir(exist_ok=True)
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(directory))


@pytest.fixture
async def server() -> AsyncIterator[aqueduct.Server[bytes]]:
    async with (
        asyncio.timeout(LIMIT),
        aqueduct.serve("127.0.0.1:0", tls=aqueduct.dev_tls()) as running,
    ):
        yield running
