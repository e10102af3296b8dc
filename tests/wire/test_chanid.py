"""Channel ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.wire.chanid import (
    ENTRYPOINT,
    MAX_INDEX,
    Side,
    channel_id,
    creator_of,
    describe,
    first_index,
    index_of,
    is_oneshot,
    sender_of,
    space_of,
)
from aqueduct.wire.primitives import MAX_VARINT

CLIENT, SERVER = Side.CLIENT, Side.SERVER


@pytest.mark.parametrize(
    ("creator", "sender", "oneshot", "index", "bits"),
    [
        (CLIENT, CLIENT, False, 0, 0b0_0_0_0),
        (SERVER, CLIENT, False, 0, 0b0_0_0_1),
        (CLIENT, SERVER, False, 0, 0b0_0_1_0),
        (CLIENT, CLIENT, True, 0, 0b0_1_0_0),
        (CLIENT, CLIENT, False, 1, 0b1_0_0_0),
        (SERVER, SERVER, True, MAX_INDEX, MAX_VARINT),
    ],
)
def test_a_channel_id_has_the_creator_in_its_lowest_bit(
    creator: Side, sender: Side, oneshot: bool, index: int, bits: int
) -> None:
    """AQ-CHANID-1."""
    assert channel_id(creator, sender, oneshot, index) == bits


@given(st.sampled_from(Side), st.sampled_from(Side), st.booleans(), st.integers(0, MAX_INDEX))
def test_the_four_fields_round_trip(creator: Side, sender: Side, oneshot: bool, index: int) -> None:
    """AQ-CHANID-1."""
    channel = channel_id(creator, sender, oneshot, index)
    assert creator_of(channel) == creator
    assert sender_of(channel) == sender
    assert is_oneshot(channel) is oneshot
    assert index_of(channel) == index
    assert channel == index_of(channel) * 8 + space_of(channel)


@pytest.mark.parametrize("index", [-1, MAX_INDEX + 1])
def test_an_index_of_more_than_61_bits_is_rejected(index: int) -> None:
    with pytest.raises(ValueError, match="not a channel index"):
        channel_id(CLIENT, CLIENT, False, index)


def test_the_entrypoint_is_zero_and_flows_from_client_to_server() -> None:
    """AQ-CHANID-2."""
    assert channel_id(CLIENT, CLIENT, False, 0) == ENTRYPOINT == 0


def test_only_the_space_of_the_entrypoint_counts_from_one() -> None:
    """AQ-CHANID-3."""
    assert [first_index(space) for space in range(8)] == [1, 0, 0, 0, 0, 0, 0, 0]


def test_each_side_has_an_opposite() -> None:
    assert CLIENT.other is SERVER
    assert SERVER.other is CLIENT


@pytest.mark.parametrize(
    ("channel", "name"),
    [
        (ENTRYPOINT, "entrypoint"),
        (channel_id(CLIENT, CLIENT, False, 3), "client#3>"),
        (channel_id(CLIENT, SERVER, False, 3), "client#3<"),
        (channel_id(SERVER, SERVER, True, 0), "server!0>"),
        (channel_id(SERVER, CLIENT, True, 12), "server!12<"),
    ],
)
def test_a_channel_is_described_by_creator_kind_index_and_direction(
    channel: int, name: str
) -> None:
    assert describe(channel) == name
