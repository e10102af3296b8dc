"""One cluster for all tests, and certificates for its servers."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from aqueduct.security import ServerTLS, make_authority, make_certificate
from tests.cluster.standalone import Cluster

if sys.platform != "linux":
    # Processes are found in /proc.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def authority() -> ServerTLS:
    return make_authority("tests of the cluster")


@pytest.fixture(scope="session")
def tls(authority: ServerTLS) -> ServerTLS:
    return make_certificate(["127.0.0.1", "localhost"], authority)
