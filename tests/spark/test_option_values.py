"""Options as text: found by name, and what all that speak to servers share."""

from __future__ import annotations

import pytest

from aqueduct.spark.errors import SinkError, SourceError, WrongOption
from aqueduct.spark.option_values import Given, is_topic


def test_a_name_is_found_however_it_is_written() -> None:
    assert Given({"TrustPin": "ab"}).text("trustPin") == "ab"
    assert Given({}).text("trustPin") is None


def test_an_option_of_nobody_is_named_with_those_there_are() -> None:
    options = Given({"topik": "a", "checkpointlocation": "b"})
    fault = r"there is no option 'topik' \(did you mean topic\?\); options: topic, token$"
    with pytest.raises(WrongOption, match=fault):
        options.check_names(("topic", "token"), ("checkpointLocation",))
    with pytest.raises(WrongOption, match=r"there is no option 'x'; options: topic, token$"):
        Given({"x": "a"}).check_names(("topic", "token"))
    Given({"checkpointlocation": "b"}).check_names((), ("checkpointLocation",))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("kafka.bootstrap.servers", "which is servers here"),
        ("kafka.security.protocol", "which is trustCa here"),
        ("kafka.group.id", "and none is needed"),
    ],
)
def test_an_option_of_kafka_is_told_what_it_is_here(name: str, advice: str) -> None:
    with pytest.raises(WrongOption, match=f"there is no option '{name}', {advice}; options: "):
        Given({name: "x"}).check_names(("servers", "trustCa"))


def test_a_wrong_option_is_an_error_of_whoever_was_given_it() -> None:
    assert issubclass(WrongOption, SourceError)
    assert issubclass(WrongOption, SinkError)


def test_a_secret_is_not_shown() -> None:
    options = Given({"servers": "a:1", "token": "a-long-random-token"}).server_options()
    assert options.token == "a-long-random-token"
    assert "a-long-random-token" not in repr(options)


@pytest.mark.parametrize("server", ["a", "a:0", "a:65536", "a b:1", "https://a:1"])
def test_a_server_is_a_host_and_a_port(server: str) -> None:
    with pytest.raises(WrongOption, match=r"option servers: .* is not host:port"):
        Given({"servers": server}).server_options()


def test_names_of_topics() -> None:
    assert all(map(is_topic, ("a", "A.b_c-1", "0" * 100)))
    assert not any(map(is_topic, ("", ".a", "a/b", "a b", "0" * 101, "ä")))
