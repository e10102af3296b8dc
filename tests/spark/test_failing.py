"""Failing tasks, killed workers and stopped queries: no row is lost or duplicated."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from aqueduct.security import ServerTLS, trust
from aqueduct.spark.backend import Backend
from tests.spark.failing import REPEATED, VALUES, WIDTH
from tests.spark.landing import Landing, stored_rows, stored_values

pytestmark = pytest.mark.slow


def test_every_row_is_stored_once_despite_failures(
    landing: Landing, tls: ServerTLS, authority: ServerTLS, tmp_path: Path
) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_bytes(authority.certificate)
    with landing.served(tls) as server:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.failing", server.address, certificate, tmp_path],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-5_000:]
        backend = Backend(server=server.address, trust=trust(authority.certificate))
        wanted = Counter({b"%0*d" % (WIDTH, each): REPEATED for each in range(VALUES)})
        for topic in ("raised", "killed", "copy"):
            assert stored_values(backend, topic) == wanted, topic
        # Two runs have written the batch, each its share of the rows.
        runs = {row["producer_id"].split(".")[2] for row in stored_rows(backend, "copy")}
        assert len(runs) == 2
