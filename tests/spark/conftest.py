"""One Spark session for all tests, topics to read, and servers for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import aqueduct.spark
from aqueduct.security import ServerTLS, make_authority, make_certificate
from tests.spark.landing import Landing


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = aqueduct.spark.session("tests", "local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def authority() -> ServerTLS:
    return make_authority("tests of Spark")


@pytest.fixture(scope="session")
def tls(authority: ServerTLS) -> ServerTLS:
    return make_certificate(["127.0.0.1", "localhost"], authority)


@pytest.fixture(scope="session")
def trust_ca(authority: ServerTLS) -> str:
    """The value of option trustCa for the servers of these tests."""
    return authority.certificate.decode()


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path / "data")
