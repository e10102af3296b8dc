"""Backends: directories and servers, and the errors when they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.security import ServerTLS, Trust, dev_trust
from aqueduct.spark.backend import _readers, find_topics, source_backends
from aqueduct.spark.errors import SourceError, WrongOption
from aqueduct.spark.options import SourceOptions, source_options
from tests.spark.landing import Landing

TOKEN = "a-long-random-token"


def options(**given: str) -> SourceOptions:
    return source_options(given)


def names(chosen: SourceOptions) -> list[str]:
    return list(find_topics(chosen, source_backends(chosen)))


def test_topics_are_found_by_name_and_by_pattern(landing: Landing) -> None:
    for topic in ("logs", "logs2", "metrics"):
        landing.write(topic, 1)
    assert names(options(path=landing.path, subscribe="metrics,logs")) == ["logs", "metrics"]
    assert names(options(path=landing.path, subscribePattern="logs.*")) == ["logs", "logs2"]
    assert names(options(path=landing.path, subscribePattern="logs")) == ["logs"]


def test_a_missing_topic_is_reported_with_the_existing_ones(landing: Landing) -> None:
    landing.write("logs", 1)
    with pytest.raises(SourceError, match=r"option subscribe: no topic 'log'; .*topics: logs"):
        names(options(path=landing.path, subscribe="log"))


def test_an_error_names_the_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"there is no directory {tmp_path / 'none'}"):
        names(options(path=str(tmp_path / "none"), subscribe="logs"))


def test_a_path_can_be_a_file_url(landing: Landing) -> None:
    landing.write("logs", 1)
    for prefix in ("file:", "file://"):
        assert names(options(path=prefix + landing.path, subscribe="logs")) == ["logs"]
    with pytest.raises(WrongOption, match="option path: 's3://bucket/x' is not a directory"):
        names(options(path="s3://bucket/x", subscribe="logs"))


def test_topics_are_found_on_several_servers(tmp_path: Path, tls: ServerTLS, trust_ca: str) -> None:
    one, two = Landing(tmp_path / "one"), Landing(tmp_path / "two")
    one.write("logs", 1)
    two.write("metrics", 1)
    with one.served(tls) as first, two.served(tls) as second:
        servers = f"{first.address},{second.address}"
        chosen = options(servers=servers, subscribe="logs,metrics", trustCa=trust_ca)
        found = find_topics(chosen, source_backends(chosen))
        assert [each.backend.server for each in found.values()] == [first.address, second.address]
        both = options(servers=servers, subscribePattern=".*", trustCa=trust_ca)
        assert names(both) == ["logs", "metrics"]


def test_a_topic_on_two_servers_is_an_error(tmp_path: Path, tls: ServerTLS, trust_ca: str) -> None:
    one, two = Landing(tmp_path / "one"), Landing(tmp_path / "two")
    one.write("logs", 1)
    two.write("logs", 1)
    with one.served(tls) as first, two.served(tls) as second:
        servers = f"{first.address},{second.address}"
        with pytest.raises(SourceError, match=f"'logs' is on server {first.address} and on server"):
            names(options(servers=servers, subscribe="logs", trustCa=trust_ca))


def test_an_untrusted_server_is_reported_with_the_trust_options(
    landing: Landing, tls: ServerTLS
) -> None:
    landing.write("logs", 1)
    with landing.served(tls) as server:
        fault = f"server {server.address}: no trust between us .* option trustDevelopment=true"
        with pytest.raises(SourceError, match=fault):
            names(options(servers=server.address, subscribe="logs"))


def test_a_server_with_tokens_requires_a_valid_token(
    landing: Landing, tls: ServerTLS, trust_ca: str
) -> None:
    landing.write("logs", 1)
    landing.write("metrics", 1)
    permissions = Permissions({TOKEN: Grant([], ["logs"])})
    with landing.served(tls, permissions=permissions) as server:
        given = {"servers": server.address, "subscribe": "logs", "trustCa": trust_ca}
        assert names(options(**given, token=TOKEN)) == ["logs"]
        with pytest.raises(SourceError, match=r"requires a valid token; .* option token"):
            names(options(**given))
        with pytest.raises(SourceError, match=r"no topic 'metrics'; server .* may not read"):
            names(options(**{**given, "subscribe": "metrics"}, token=TOKEN))


def test_a_connection_is_cached_and_reopened_when_it_breaks(
    landing: Landing, tls: ServerTLS, trust_ca: str
) -> None:
    landing.write("logs", 1)
    with landing.served(tls) as server:
        address = server.address
        (backend,) = source_backends(options(servers=address, subscribe="logs", trustCa=trust_ca))
        backend.topics()
        kept = _readers.get(backend)
        backend.topics()
        assert _readers.get(backend) is kept
    with landing.served(tls, address):
        assert [info.topic for info in backend.topics()] == ["logs"]
        assert _readers.get(backend) is not kept


def test_there_are_four_ways_to_select_trust(authority: ServerTLS, tmp_path: Path) -> None:
    def trusted(**more: str) -> Trust:
        return source_backends(options(servers="a:1", subscribe="logs", **more))[0].trust

    pem = tmp_path / "ca.pem"
    pem.write_bytes(authority.certificate)
    assert trusted(trustCa=str(pem)) == trusted(trustCa=authority.certificate.decode())
    assert trusted(trustPin="ab" * 32) == Trust(pinned="ab" * 32)
    assert trusted(trustPin="sha256:" + "ab" * 32) == Trust(pinned="ab" * 32)
    assert trusted(trustDevelopment="true") == dev_trust()
    assert trusted() == Trust()
    with pytest.raises(WrongOption, match="option trustPin: not a SHA-256 fingerprint"):
        trusted(trustPin="ab")
    with pytest.raises(WrongOption, match="option trustCa: "):
        trusted(trustCa=str(tmp_path / "none.pem"))
    with pytest.raises(WrongOption, match=r"option trustCa: .*not PEM"):
        trusted(trustCa="-----BEGIN nonsense")


def test_the_token_is_not_in_the_repr() -> None:
    (backend,) = source_backends(options(servers="a:1", subscribe="logs", token=TOKEN))
    assert TOKEN not in repr(backend)
