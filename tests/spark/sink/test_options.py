"""Options of the sink: read, and refused by name."""

from __future__ import annotations

import pytest

from aqueduct.spark.errors import WrongOption
from aqueduct.spark.sink.options import NAMES, sink_options

HERE = {"servers": "a:1", "topic": "logs"}


def test_little_has_to_be_said() -> None:
    options = sink_options(HERE, streaming=False)
    assert (options.servers, options.topic, options.partitions) == (("a:1",), "logs", None)
    assert (options.columns, options.id_column, options.write_id) == ({}, None, None)
    assert not options.trust_development


def test_every_option_is_read() -> None:
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
    assert set(given) | {"trustCa", "trustDevelopment", "onTopicReplaced"} == set(NAMES)


def test_what_spark_passes_on_of_its_own_is_let_pass() -> None:
    sink_options({**HERE, "checkpointlocation": "c", "queryname": "q"}, streaming=True)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"topic": "logs"}, "option servers says where to write to"),
        ({**HERE, "subscribe": "logs"}, "there is no option 'subscribe'; options: servers, topic"),
        ({**HERE, "path": "data"}, "there is no option 'path'"),
        ({**HERE, "topic": "a,b"}, "option topic is the one topic"),
        ({**HERE, "topic": "a b"}, "option topic: 'a b' cannot be the name of a topic"),
        ({**HERE, "topic": ""}, "option topic is empty"),
        ({**HERE, "partitions": "0"}, "option partitions is a whole number from 1 to 1000"),
        ({**HERE, "writeId": "a b"}, "option writeId is up to 100 letters"),
        ({**HERE, "writeStep": "1"}, "option writeStep goes with writeId"),
        ({**HERE, "writeId": "a", "writeStep": "-1"}, "option writeStep is a whole number from 0"),
        ({**HERE, "trustCa": "x", "trustPin": "y"}, "options trustCa and trustPin exclude"),
        ({**HERE, "trustDevelopment": "yes"}, "option trustDevelopment is true or false"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, str], fault: str) -> None:
    with pytest.raises(WrongOption, match=fault):
        sink_options(given, streaming=False)


def test_a_stream_may_go_on_in_a_topic_that_was_replaced() -> None:
    going_on = {**HERE, "onTopicReplaced": "Continue"}
    assert sink_options(going_on, streaming=True).on_topic_replaced == "continue"
    with pytest.raises(WrongOption, match="option onTopicReplaced is for a stream only"):
        sink_options(going_on, streaming=False)
    with pytest.raises(WrongOption, match="onTopicReplaced must be one of error, continue, no"):
        sink_options({**HERE, "onTopicReplaced": "restart"}, streaming=True)


def test_a_stream_has_a_name_already() -> None:
    with pytest.raises(WrongOption, match="option writeId is for a batch only"):
        sink_options({**HERE, "writeId": "a"}, streaming=True)
