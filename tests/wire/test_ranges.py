"""RangeSet, and the two encodings of ranges in frames."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aqueduct.errors import CloseCode, RemoteProtocolError
from aqueduct.wire.primitives import MAX_VARINT, decode_varbytes, encode_varbytes
from aqueduct.wire.ranges import (
    MAX_RANGE_VARINTS,
    MAX_RANGES_PER_ACK,
    MAX_RANGES_SIZE,
    Range,
    RangeSet,
    decode_ack_nack_lengths,
    decode_ack_ranges,
    encode_ack_nack_lengths,
    encode_ack_ranges,
)

HORIZON = 16
numbers = st.integers(0, HORIZON)


def runs(model: set[int], start: int, stop: int, inside: bool) -> list[Range]:
    """Return the maximal runs of numbers that are (or are not) in the model."""
    found: list[Range] = []
    for number in range(start, stop):
        if (number in model) is inside:
            if found and found[-1][1] == number:
                found[-1] = (found[-1][0], number + 1)
            else:
                found.append((number, number + 1))
    return found


@given(st.lists(st.tuples(st.sampled_from(["add", "new", "below"]), numbers, numbers)))
def test_a_range_set_behaves_like_a_set_of_integers(steps: list[tuple[str, int, int]]) -> None:
    ranges, model = RangeSet(), set[int]()
    for step, start, stop in steps:
        added = set(range(start, stop))
        if step == "add":
            ranges.add(start, stop)
            model |= added
        elif step == "new":
            assert ranges.add_new(start, stop) is not bool(model & added)
            model |= set() if model & added else added
        else:
            ranges.remove_below(start)
            model = {number for number in model if number >= start}
        assert list(ranges.ranges()) == runs(model, 0, HORIZON, True)

    assert ranges.range_count == len(runs(model, 0, HORIZON, True))
    assert ranges.count == len(model)
    assert ranges.max == max(model, default=-1) + 1
    assert bool(ranges) is bool(model)
    for start, stop in product(range(HORIZON + 2), repeat=2):
        asked = set(range(start, stop))
        assert (start in ranges) is (start in model)
        assert ranges.intersects(start, stop) is bool(model & asked)
        assert list(ranges.intersection(start, stop)) == runs(model, start, stop, True)
        assert list(ranges.missing(start, stop)) == runs(model, start, stop, False)
        assert ranges.first_missing(start) == next(n for n in range(start, 99) if n not in model)


def test_the_order_in_which_ranges_are_added_does_not_matter() -> None:
    assert RangeSet([(0, 3), (5, 9), (3, 5)]) == RangeSet([(0, 9)])
    assert RangeSet([(5, 9), (0, 3)]) == RangeSet([(0, 3), (5, 9)])
    assert RangeSet([(0, 3)]) != RangeSet([(0, 4)])
    assert RangeSet() != set()


def test_huge_ranges_cost_no_more_than_small_ones() -> None:
    ranges = RangeSet([(2**60, 2**63), (0, 2**40)])
    assert ranges.count == 2**63 - 2**60 + 2**40
    assert 2**62 in ranges
    assert ranges.first_missing() == 2**40
    assert list(ranges.missing(0, 2**64)) == [(2**40, 2**60), (2**63, 2**64)]
    assert not ranges.add_new(2**39, 2**41)
    ranges.remove_below(2**62)
    assert list(ranges.ranges()) == [(2**62, 2**63)]


def test_a_set_prints_its_ranges() -> None:
    assert repr(RangeSet([(0, 5), (7, 8)])) == "RangeSet(0..5, 7..8)"


def contents_of(encoded: bytes) -> bytes:
    contents, stop = decode_varbytes(encoded, 0, len(encoded))
    assert stop == len(encoded)
    return contents


@pytest.mark.parametrize(
    ("ranges", "contents"),
    [
        (((0, 1),), "00 01"),
        (((4, 6),), "04 02"),
        (((0, 3), (5, 6), (300, 301)), "00 03 02 01 A6 02 01"),
        (((MAX_VARINT, MAX_VARINT + 1),), "FF" * 9 + "01 01"),
    ],
)
def test_acked_ranges_are_gaps_and_lengths_from_zero(
    ranges: tuple[Range, ...], contents: str
) -> None:
    """AQ-RANGE-1."""
    data = bytes.fromhex(contents)
    assert contents_of(encode_ack_ranges(ranges)) == data
    assert decode_ack_ranges(data) == ranges


@given(st.lists(st.tuples(st.integers(1, 2**54), st.integers(1, 2**54)), min_size=1, max_size=50))
def test_acked_ranges_round_trip(steps: list[tuple[int, int]]) -> None:
    ranges: list[Range] = []
    reached = 0
    for gap, length in steps:
        ranges.append((reached + gap, reached + gap + length))
        reached += gap + length
    assert decode_ack_ranges(contents_of(encode_ack_ranges(ranges))) == tuple(ranges)


@pytest.mark.parametrize("contents", ["", "00", "03", "00 01 02"])
def test_acked_ranges_are_pairs_and_not_empty(contents: str) -> None:
    """AQ-RANGE-1."""
    assert rule_broken_by_acked(contents) == "AQ-RANGE-1"


@pytest.mark.parametrize("contents", ["00 00", "01 00", "00 01 00 01", "00 01 01 00"])
def test_only_the_first_gap_of_acked_ranges_may_be_zero(contents: str) -> None:
    """AQ-RANGE-2."""
    assert rule_broken_by_acked(contents) == "AQ-RANGE-2"


@pytest.mark.parametrize(
    ("lengths", "contents"),
    [((1,), "01"), ((0, 1), "00 01"), ((5, 300, 1), "05 AC 02 01"), ((0, 1, 2), "00 01 02")],
)
def test_acks_and_nacks_are_alternating_lengths(lengths: tuple[int, ...], contents: str) -> None:
    """AQ-RANGE-3."""
    data = bytes.fromhex(contents)
    assert contents_of(encode_ack_nack_lengths(lengths)) == data
    assert decode_ack_nack_lengths(data) == lengths


@pytest.mark.parametrize("contents", ["", "00", "00 00", "01 00", "00 01 00", "01 00 01"])
def test_lengths_of_acks_and_nacks_are_not_zero_or_missing(contents: str) -> None:
    """AQ-RANGE-3."""
    assert rule_broken_by_acks_and_nacks(contents) == "AQ-RANGE-3"


@pytest.mark.parametrize("contents", ["02" + "FF" * 9 + "01", "FF" * 9 + "01 02"])
def test_ranges_end_at_the_last_message_number(contents: str) -> None:
    """AQ-RANGE-4."""
    assert rule_broken_by_acked(contents) == "AQ-RANGE-4"
    assert rule_broken_by_acks_and_nacks(contents) == "AQ-RANGE-4"


def test_ranges_hold_a_limited_number_of_varints() -> None:
    """AQ-RANGE-5."""
    full = b"\x01" * MAX_RANGE_VARINTS
    ranges = decode_ack_ranges(full)
    assert len(ranges) == MAX_RANGES_PER_ACK
    assert encode_ack_ranges(ranges) == encode_varbytes(full)
    lengths = decode_ack_nack_lengths(full)
    assert encode_ack_nack_lengths(lengths) == encode_varbytes(full)
    assert len(full) * 10 == MAX_RANGES_SIZE
    for decode in (decode_ack_ranges, decode_ack_nack_lengths):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(full + b"\x01\x01")
        assert caught.value.rule == "AQ-RANGE-5"
        assert caught.value.code is CloseCode.LIMIT_EXCEEDED


@pytest.mark.parametrize("contents", ["00 01 80", "80", "01 FF"])
def test_a_varint_that_runs_past_the_ranges_is_rejected(contents: str) -> None:
    """AQ-BYTES-2."""
    assert rule_broken_by_acked(contents) == "AQ-BYTES-2"
    assert rule_broken_by_acks_and_nacks(contents) == "AQ-BYTES-2"


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(3, 3)],
        [(0, 3), (3, 4)],
        [(5, 6), (0, 3)],
        [(0, MAX_VARINT + 2)],
        [(2 * at, 2 * at + 1) for at in range(MAX_RANGES_PER_ACK + 1)],
    ],
)
def test_ranges_that_cannot_be_decoded_are_not_encoded(ranges: list[Range]) -> None:
    with pytest.raises(ValueError, match=r"range|varint"):
        encode_ack_ranges(ranges)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1, 0], [1] * (MAX_RANGE_VARINTS + 1)])
def test_lengths_that_cannot_be_decoded_are_not_encoded(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"length|varints"):
        encode_ack_nack_lengths(lengths)


def rule_broken_by_acked(contents: str) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_ack_ranges(bytes.fromhex(contents))
    return caught.value.rule


def rule_broken_by_acks_and_nacks(contents: str) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_ack_nack_lengths(bytes.fromhex(contents))
    return caught.value.rule
