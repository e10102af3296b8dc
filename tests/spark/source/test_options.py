"""Options: found however they are written, and refused by name."""

from __future__ import annotations

import pytest

from aqueduct.spark.errors import WrongOption
from aqueduct.spark.source.offsets import EARLIEST, LATEST, TopicPartition
from aqueduct.spark.source.options import NAMES, Position, read_options

HERE = {"path": "data", "subscribe": "logs"}
THERE = {"servers": "a:1,[::1]:2", "subscribe": "logs"}


def test_what_is_left_out_is_as_in_kafka() -> None:
    batch = read_options(HERE, streaming=False)
    assert (batch.path, batch.servers, batch.topics, batch.pattern) == ("data", (), ("logs",), None)
    assert (batch.start, batch.end) == (Position(EARLIEST), Position(LATEST))
    assert read_options(HERE, streaming=True).start == Position(LATEST)
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.start_time is batch.max_rows is batch.max_bytes is None
    assert batch.min_partitions == 1


def test_every_option_is_read() -> None:
    options = read_options(
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


def test_capital_letters_make_no_difference() -> None:
    shouted = {name.upper(): value for name, value in HERE.items()}
    assert read_options(shouted) == read_options(HERE)


def test_a_topic_that_was_replaced_is_an_error_unless_data_may_be_lost() -> None:
    def chosen(**more: str) -> str:
        return read_options({**HERE, **more}, streaming=True).on_topic_replaced

    assert chosen() == "error"
    assert chosen(failOnDataLoss="false") == "restart"
    assert chosen(failOnDataLoss="false", onTopicReplaced="error") == "error"
    assert chosen(onTopicReplaced="CONTINUE") == "continue"


def test_offsets_are_given_by_partition() -> None:
    options = read_options(
        {**HERE, "startingOffsets": '{"logs": {"0": 5, "1": -2}}'}, streaming=False
    )
    assert options.start.offsets == {TopicPartition("logs", 0): 5, TopicPartition("logs", 1): -2}
    assert read_options(
        {**HERE, "startingOffsets": '{"version": 1, "topics": {"logs": {"0": 5}}}'}
    ).start.offsets == {TopicPartition("logs", 0): 5}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({**HERE, "maxRows": "1"}, "there is no option 'maxrows'; options: path, servers"),
        ({**HERE, "onTopicReplaced": "x"}, "onTopicReplaced must be one of error, restart, con"),
        ({"subscribe": "logs"}, "path and servers say where to read from: neither is given"),
        ({**HERE, **THERE}, "path and servers say where to read from: both are given"),
        ({"path": "data"}, "subscribe and subscribePattern say what to read: neither is given"),
        ({**HERE, "subscribePattern": "x"}, "what to read: both are given"),
        ({**HERE, "path": " "}, "option path is empty"),
        ({**HERE, "subscribe": "logs,"}, "option subscribe: 'logs,' has an empty or a repeated"),
        ({**HERE, "subscribe": "a,a"}, "option subscribe: 'a,a' has an empty or a repeated"),
        ({**HERE, "subscribe": "../etc"}, "option subscribe: '../etc' cannot be the name"),
        ({"path": "data", "subscribePattern": "("}, r"option subscribePattern: '\(' is not a reg"),
        ({**THERE, "servers": "localhost"}, "option servers: 'localhost' is not host:port"),
        ({**THERE, "servers": "a:0"}, "option servers: 'a:0' is not host:port"),
        ({**THERE, "servers": "quic://a:1"}, "option servers: 'quic://a:1' is not host:port"),
        ({**HERE, "startingOffsets": "first"}, "option startingOffsets is earliest, latest, or"),
        ({**HERE, "startingOffsets": "{"}, "option startingOffsets: not JSON"),
        ({**HERE, "startingOffsets": "{}"}, "option startingOffsets names no partition"),
        ({**HERE, "startingOffsets": '{"a": 1}'}, "option startingOffsets: topic 'a' has 1"),
        ({**HERE, "endingOffsets": "earliest"}, "option endingOffsets: nothing ends at the earl"),
        ({**HERE, "endingOffsets": '{"a": {"0": -2}}'}, "option endingOffsets: nothing ends"),
        (
            {
                **HERE,
                "startingOffsets": '{"a": {"0": 9}}',
                "endingOffsets": '{"a": {"0": 3}}',
            },
            "startingOffsets and endingOffsets: a partition 0 begins at 9, behind its end at 3",
        ),
        (
            {**HERE, "startingTimestamp": "yesterday"},
            "is milliseconds since 1970, a whole",
        ),
        (
            {**HERE, "startingTimestamp": "1", "startingOffsets": "earliest"},
            "options startingOffsets and startingTimestamp exclude each other",
        ),
        ({**HERE, "failOnDataLoss": "no"}, "option failOnDataLoss is true or false, not 'no'"),
        ({**HERE, "includeHeaders": "1"}, "option includeHeaders is true or false, not '1'"),
        ({**HERE, "minPartitions": "0"}, "option minPartitions is a whole number from 1 to 100000"),
        ({**HERE, "minPartitions": "1e3"}, "option minPartitions is a whole number"),
        ({**HERE, "token": "secret"}, "option token goes with servers"),
        ({**HERE, "trustCa": "ca.pem"}, "option trustCa goes with servers"),
        ({**THERE, "trustCa": "x", "trustPin": "y"}, "options trustCa and trustPin exclude"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, str], fault: str) -> None:
    with pytest.raises(WrongOption, match=fault):
        read_options(given)


@pytest.mark.parametrize(
    ("more", "streaming", "fault"),
    [
        ({"endingOffsets": "latest"}, True, "option endingOffsets is for a batch only"),
        ({"maxOffsetsPerTrigger": "5"}, False, "option maxOffsetsPerTrigger is for a stream only"),
        ({"maxBytesPerTrigger": "5"}, False, "option maxBytesPerTrigger is for a stream only"),
        ({"onTopicReplaced": "restart"}, False, "option onTopicReplaced is for a stream only"),
        ({"startingOffsets": "latest"}, False, "a batch that begins at the latest offset"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, False, "a batch that begins at the latest"),
    ],
)
def test_what_is_for_the_other_way_of_reading_is_refused(
    more: dict[str, str], streaming: bool, fault: str
) -> None:
    with pytest.raises(WrongOption, match=fault):
        read_options({**HERE, **more}, streaming=streaming)
    read_options({**HERE, **more})
    read_options({**HERE, **more}, streaming=not streaming)


def test_the_names_are_listed_once() -> None:
    assert len({name.lower() for name in NAMES}) == len(NAMES)
