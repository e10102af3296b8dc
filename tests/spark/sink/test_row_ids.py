"""Row ids: equal for the same rows in any order, and unique."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from aqueduct.spark.sink.row_ids import HASH_SIZE, Occurrences, content_hashes, user_ids

Row = tuple[bytes, bytes | None, list[tuple[str, bytes]], int | None]
texts = st.binary(max_size=3)
rows = st.tuples(
    texts,
    st.none() | texts,
    st.lists(st.tuples(st.text(max_size=2), texts), max_size=2),
    st.none() | st.integers(-(2**62), 2**62),
)


def ids(content: list[Row]) -> list[bytes]:
    columns = [list(column) for column in zip(*content, strict=True)] or [[], [], [], []]
    return Occurrences().ids(content_hashes(*columns))


@given(st.lists(rows, max_size=20), st.randoms(use_true_random=False))
def test_the_same_rows_in_another_order_have_the_same_ids(content: list[Row], rng: Random) -> None:
    shuffled = list(content)
    rng.shuffle(shuffled)
    assert sorted(ids(content)) == sorted(ids(shuffled))


@given(st.lists(rows, max_size=20))
def test_every_row_has_a_unique_id(content: list[Row]) -> None:
    made = ids(content)
    assert len(set(made)) == len(content)
    assert all(len(each) == 20 for each in made)
    by_hash = Counter(each[:HASH_SIZE] for each in made)
    equal = Counter((value, key, tuple(headers), time) for value, key, headers, time in content)
    assert sorted(by_hash.values()) == sorted(equal.values())


@given(st.lists(rows, max_size=20), st.integers(0, 20))
def test_ids_do_not_depend_on_batch_boundaries(content: list[Row], at: int) -> None:
    columns = [list(column) for column in zip(*content, strict=True)] or [[], [], [], []]
    hashes = content_hashes(*columns)
    counting = Occurrences()
    assert counting.ids(hashes[:at]) + counting.ids(hashes[at:]) == Occurrences().ids(hashes)


def test_an_empty_column_hashes_like_a_missing_one() -> None:
    values = [b"a", b"b"]
    assert content_hashes(values) == content_hashes(values, [None] * 2, [[], []], [None] * 2)
    assert content_hashes(values) != content_hashes(values, [b""] * 2)


def test_the_hashed_content_never_changes() -> None:
    """A query that continues with a newer version must recognise its rows."""
    (made,) = ids([(b"value", b"key", [("name", b"text")], 1_700_000_000_000_000)])
    assert made.hex() == "8f17a9350a42a23a3ae240d8a738bb3c00000000"
    (own,) = user_ids([b"order-1"])
    assert own.hex() == "531793c96c63faf293d97fab8bb0597500000000"


def test_user_ids_depend_only_on_their_value() -> None:
    assert user_ids([b"1", b"1", 1]) == [user_ids([b"1"])[0]] * 2 + user_ids([1])
    assert len(set(user_ids([b"1", 1, -1, b"n1", 2**63 - 1]))) == 5
