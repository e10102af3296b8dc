"""Options of the source and the sink: parsed by name, and validated."""

from __future__ import annotations

import pytest

from aqueduct.spark.errors import SinkError, SourceError, WrongOption
from aqueduct.spark.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    OptionValues,
    Position,
    is_topic,
    sink_options,
    source_options,
)
from aqueduct.spark.source.offsets import EARLIEST, LATEST, TopicPartition

PATH = {"path": "data", "subscribe": "logs"}
SERVERS = {"servers": "a:1,[::1]:2", "subscribe": "logs"}
SINK = {"servers": "a:1", "topic": "logs"}


def test_the_case_of_an_option_name_is_ignored() -> None:
    assert OptionValues({"TrustPin": "ab"}).text("trustPin") == "ab"
    assert OptionValues({}).text("trustPin") is None


def test_an_unknown_option_is_reported_with_the_known_ones() -> None:
    options = OptionValues({"topik": "a", "checkpointlocation": "b"})
    fault = r"there is no option 'topik' \(did you mean topic\?\); options: topic, token$"
    with pytest.raises(WrongOption, match=fault):
        options.check_names(("topic", "token"), ("checkpointLocation",))
    with pytest.raises(WrongOption, match=r"there is no option 'x'; options: topic, token$"):
        OptionValues({"x": "a"}).check_names(("topic", "token"))
    OptionValues({"checkpointlocation": "b"}).check_names((), ("checkpointLocation",))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("kafka.bootstrap.servers", "which is servers here"),
        ("kafka.security.protocol", "which is trustCa here"),
        ("kafka.group.id", "and none is needed"),
    ],
)
def test_an_option_of_kafka_is_reported_with_its_equivalent(name: str, advice: str) -> None:
    with pytest.raises(WrongOption, match=f"there is no option '{name}', {advice}; options: "):
        OptionValues({name: "x"}).check_names(("servers", "trustCa"))


def test_a_wrong_option_is_a_source_error_and_a_sink_error() -> None:
    assert issubclass(WrongOption, SourceError)
    assert issubclass(WrongOption, SinkError)


def test_the_token_is_not_in_the_repr() -> None:
    options = OptionValues({"servers": "a:1", "token": "a-long-random-token"}).server_options()
    assert options.token == "a-long-random-token"
    assert "a-long-random-token" not in repr(options)


@pytest.mark.parametrize("scheme", ["", "aqueduct://", "aqueduct+quic://", "aqueduct+tcp://"])
def test_a_server_may_name_its_transport(scheme: str) -> None:
    servers = f"{scheme}a:1", f"{scheme}[::1]:4434"
    assert OptionValues({"servers": ",".join(servers)}).server_options().servers == servers


@pytest.mark.parametrize("server", ["a", "a:0", "a:65536", "a b:1", "https://a:1", "memory://a:1"])
def test_a_server_is_a_host_and_a_port(server: str) -> None:
    with pytest.raises(WrongOption, match=r"option servers: .* is not host:port"):
        OptionValues({"servers": server}).server_options()


def test_topic_names_are_validated() -> None:
    assert all(map(is_topic, ("a", "A.b_c-1", "0" * 100)))
    assert not any(map(is_topic, ("", ".a", "a/b", "a b", "0" * 101, "ä")))


def test_the_defaults_are_those_of_kafka() -> None:
    batch = source_options(PATH, streaming=False)
    assert (batch.path, batch.servers, batch.topics, batch.pattern) == ("data", (), ("logs",), None)
    assert (batch.start, batch.end) == (Position(EARLIEST), Position(LATEST))
    assert source_options(PATH, streaming=True).start == Position(LATEST)
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.start_time is batch.max_rows is batch.max_bytes is None
    assert batch.min_partitions == 1


def test_every_source_option_is_read() -> None:
    options = source_options(
        {
            "servers": "localhost:4434, other:4435",
            "subscribePattern": "log.*",
            "startingTimestamp": "1700000000500",
            "failOnDataLoss": "FALSE",
            "maxOffsetsPerTrigger": "10",
            "maxBytesPerTrigger": "1000",
            "minPartitions": "3",
            "includeHeaders": "true",
            "trustPin": "ab",
            "token": "a-long-random-token",
        },
        streaming=True,
    )
    assert options.servers == ("localhost:4434", "other:4435")
    assert (options.topics, options.pattern) == ((), "log.*")
    assert options.start_time == 1_700_000_000.5
    assert (options.max_rows, options.max_bytes, options.min_partitions) == (10, 1_000, 3)
    assert options.include_headers
    assert not options.fail_on_data_loss
    assert (options.trust_pin, options.token) == ("ab", "a-long-random-token")
    assert "a-long-random-token" not in repr(options)


def test_the_case_of_source_options_is_ignored() -> None:
    shouted = {name.upper(): value for name, value in PATH.items()}
    assert source_options(shouted) == source_options(PATH)


def test_a_replaced_topic_is_an_error_unless_data_may_be_lost() -> None:
    def chosen(**more: str) -> str:
        return source_options({**PATH, **more}, streaming=True).on_topic_replaced

    assert chosen() == "error"
    assert chosen(failOnDataLoss="false") == "restart"
    assert chosen(failOnDataLoss="false", onTopicReplaced="error") == "error"
    assert chosen(onTopicReplaced="CONTINUE") == "continue"


def test_offsets_are_given_by_partition() -> None:
    options = source_options(
        {**PATH, "startingOffsets": '{"logs": {"0": 5, "1": -2}}'}, streaming=False
    )
    assert options.start.offsets == {TopicPartition("logs", 0): 5, TopicPartition("logs", 1): -2}
    assert source_options(
        {**PATH, "startingOffsets": '{"version": 1, "topics": {"logs": {"0": 5}}}'}
    ).start.offsets == {TopicPartition("logs", 0): 5}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({**PATH, "maxRows": "1"}, "there is no option 'maxrows'; options: path, servers"),
        ({**PATH, "onTopicReplaced": "x"}, "onTopicReplaced must be one of error, restart, con"),
        ({"subscribe": "logs"}, "path and servers say where to read from: neither is given"),
        ({**PATH, **SERVERS}, "path and servers say where to read from: both are given"),
        ({"path": "data"}, "subscribe and subscribePattern say what to read: neither is given"),
        ({**PATH, "subscribePattern": "x"}, "what to read: both are given"),
        ({**PATH, "path": " "}, "option path is empty"),
        ({**PATH, "subscribe": "logs,"}, "option subscribe: 'logs,' has an empty or a repeated"),
        ({**PATH, "subscribe": "a,a"}, "option subscribe: 'a,a' has an empty or a repeated"),
        ({**PATH, "subscribe": "../etc"}, "option subscribe: '../etc' cannot be the name"),
        ({"path": "data", "subscribePattern": "("}, r"option subscribePattern: '\(' is not a reg"),
        ({**SERVERS, "servers": "localhost"}, "option servers: 'localhost' is not host:port"),
        ({**SERVERS, "servers": "a:0"}, "option servers: 'a:0' is not host:port"),
        ({**SERVERS, "servers": "quic://a:1"}, "option servers: 'quic://a:1' is not host:port"),
        ({**PATH, "startingOffsets": "first"}, "option startingOffsets is earliest, latest, or"),
        ({**PATH, "startingOffsets": "{"}, "option startingOffsets: not JSON"),
        ({**PATH, "startingOffsets": "{}"}, "option startingOffsets names no partition"),
        ({**PATH, "startingOffsets": '{"a": 1}'}, "option startingOffsets: topic 'a' has 1"),
        (
            {**PATH, "endingOffsets": "earliest"},
            "option endingOffsets: a batch cannot end at the earl",
        ),
        ({**PATH, "endingOffsets": '{"a": {"0": -2}}'}, "option endingOffsets: a batch cannot end"),
        (
            {
                **PATH,
                "startingOffsets": '{"a": {"0": 9}}',
                "endingOffsets": '{"a": {"0": 3}}',
            },
            "startingOffsets and endingOffsets: a partition 0 starts at 9, after its end at 3",
        ),
        (
            {**PATH, "startingTimestamp": "yesterday"},
            "is milliseconds since 1970, a whole",
        ),
        (
            {**PATH, "startingTimestamp": "1", "startingOffsets": "earliest"},
            "options startingOffsets and startingTimestamp exclude each other",
        ),
        ({**PATH, "failOnDataLoss": "no"}, "option failOnDataLoss is true or false, not 'no'"),
        ({**PATH, "includeHeaders": "1"}, "option includeHeaders is true or false, not '1'"),
        ({**PATH, "minPartitions": "0"}, "option minPartitions is a whole number from 1 to 100000"),
        ({**PATH, "minPartitions": "1e3"}, "option minPartitions is a whole number"),
        ({**PATH, "token": "secret"}, "option token goes with servers"),
        ({**PATH, "trustCa": "ca.pem"}, "option trustCa goes with servers"),
        ({**SERVERS, "trustCa": "x", "trustPin": "y"}, "options trustCa and trustPin exclude"),
    ],
)
def test_an_invalid_source_option_is_rejected_by_name(given: dict[str, str], fault: str) -> None:
    with pytest.raises(WrongOption, match=fault):
        source_options(given)


@pytest.mark.parametrize(
    ("more", "streaming", "fault"),
    [
        ({"endingOffsets": "latest"}, True, "option endingOffsets is for a batch only"),
        ({"maxOffsetsPerTrigger": "5"}, False, "option maxOffsetsPerTrigger is for a stream only"),
        ({"maxBytesPerTrigger": "5"}, False, "option maxBytesPerTrigger is for a stream only"),
        ({"onTopicReplaced": "restart"}, False, "option onTopicReplaced is for a stream only"),
        ({"startingOffsets": "latest"}, False, "a batch that starts at the latest offset"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, False, "a batch that starts at the latest"),
    ],
)
def test_batch_options_and_stream_options_are_distinguished(
    more: dict[str, str], streaming: bool, fault: str
) -> None:
    with pytest.raises(WrongOption, match=fault):
        source_options({**PATH, **more}, streaming=streaming)
    source_options({**PATH, **more})
    source_options({**PATH, **more}, streaming=not streaming)


def test_option_names_are_unique() -> None:
    assert len({name.lower() for name in SOURCE_OPTIONS}) == len(SOURCE_OPTIONS)


def test_the_sink_needs_only_servers_and_a_topic() -> None:
    options = sink_options(SINK, streaming=False)
    assert (options.servers, options.topic, options.partitions) == (("a:1",), "logs", None)
    assert (options.columns, options.id_column, options.write_id) == ({}, None, None)
    assert not options.trust_development


def test_every_sink_option_is_read() -> None:
    given = {
        "servers": "a:1,b:2",
        "topic": "logs",
        "key": "k",
        "value": "v",
        "headers": "h",
        "timestamp": "t",
        "idColumn": "i",
        "partitions": "8",
        "writeId": "copy-7",
        "writeStep": "3",
        "failOnExtraRows": "false",
        "trustPin": "ab",
        "token": "a-long-random-token",
    }
    options = sink_options(given, streaming=False)
    assert options.servers == ("a:1", "b:2")
    assert options.columns == {"key": "k", "value": "v", "headers": "h", "timestamp": "t"}
    assert (options.id_column, options.partitions) == ("i", 8)
    assert (options.write_id, options.write_step) == ("copy-7", 3)
    assert not options.fail_on_extra_rows
    assert (options.trust_pin, options.token) == ("ab", "a-long-random-token")
    assert options.on_topic_replaced == "error"
    assert set(given) | {"trustCa", "trustDevelopment", "onTopicReplaced"} == set(SINK_OPTIONS)


def test_options_of_spark_itself_are_ignored() -> None:
    sink_options({**SINK, "checkpointlocation": "c", "queryname": "q"}, streaming=True)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"topic": "logs"}, "option servers says where to write to"),
        ({**SINK, "subscribe": "logs"}, "there is no option 'subscribe'; options: servers, topic"),
        ({**SINK, "path": "data"}, "there is no option 'path'"),
        ({**SINK, "topic": "a,b"}, "option topic is the one topic"),
        ({**SINK, "topic": "a b"}, "option topic: 'a b' cannot be the name of a topic"),
        ({**SINK, "topic": ""}, "option topic is empty"),
        ({**SINK, "partitions": "0"}, "option partitions is a whole number from 1 to 1000"),
        ({**SINK, "writeId": "a b"}, "option writeId is up to 100 letters"),
        ({**SINK, "writeStep": "1"}, "option writeStep goes with writeId"),
        ({**SINK, "writeId": "a", "writeStep": "-1"}, "option writeStep is a whole number from 0"),
        ({**SINK, "trustCa": "x", "trustPin": "y"}, "options trustCa and trustPin exclude"),
        ({**SINK, "trustDevelopment": "yes"}, "option trustDevelopment is true or false"),
    ],
)
def test_an_invalid_sink_option_is_rejected_by_name(given: dict[str, str], fault: str) -> None:
    with pytest.raises(WrongOption, match=fault):
        sink_options(given, streaming=False)


def test_a_stream_can_continue_in_a_replaced_topic() -> None:
    going_on = {**SINK, "onTopicReplaced": "Continue"}
    assert sink_options(going_on, streaming=True).on_topic_replaced == "continue"
    with pytest.raises(WrongOption, match="option onTopicReplaced is for a stream only"):
        sink_options(going_on, streaming=False)
    with pytest.raises(WrongOption, match="onTopicReplaced must be one of error, continue, no"):
        sink_options({**SINK, "onTopicReplaced": "restart"}, streaming=True)


def test_a_stream_rejects_a_write_id() -> None:
    with pytest.raises(WrongOption, match="option writeId is for a batch only"):
        sink_options({**SINK, "writeId": "a"}, streaming=True)
