"""Headers: an ordered multimap of byte strings."""

from typing import Any

import pytest

from aqueduct import Headers
from aqueduct.runtime.headers import to_pairs

SOME = Headers(((b"a", b"1"), (b"b", b"2"), (b"a", b"\xff")))


def test_names_are_str_or_bytes() -> None:
    assert SOME.get("a") == SOME.get(b"a") == b"1"
    assert SOME.get("c") is None
    assert SOME.get("c", b"x") == b"x"
    assert SOME.all("a") == [b"1", b"\xff"]
    assert "a" in SOME
    assert "c" not in SOME
    assert (b"b", b"2") in SOME


def test_text_replaces_invalid_utf_8() -> None:
    assert SOME.text("b") == "2"
    assert SOME.text("c") is None
    assert SOME.text("c", "x") == "x"
    assert Headers(((b"a", b"\xff"),)).text("a") == "\ufffd"


def test_headers_are_a_sequence_of_pairs() -> None:
    assert len(SOME) == 3
    assert SOME[1] == (b"b", b"2")
    assert SOME[1:] == Headers(((b"b", b"2"), (b"a", b"\xff")))
    assert list(SOME) == list(SOME.pairs)
    assert Headers(SOME.pairs) == SOME
    assert SOME.pairs == SOME
    assert Headers() != SOME
    assert len({SOME, Headers(SOME.pairs)}) == 1
    assert repr(SOME[:1]) == "Headers([(b'a', b'1')])"


@pytest.mark.parametrize(
    ("given", "pairs"),
    [
        (None, ()),
        ({}, ()),
        ({"a": "ä"}, ((b"a", "ä".encode()),)),
        ({"a": b"1"}, ((b"a", b"1"),)),
        ([("a", "1"), (b"a", bytearray(b"2"))], ((b"a", b"1"), (b"a", b"2"))),
        (SOME, SOME.pairs),
    ],
)
def test_mappings_and_pairs_are_accepted_as_headers(given: Any, pairs: Any) -> None:
    assert to_pairs(given) == pairs


@pytest.mark.parametrize("bad", [{"a": 3}, {"a": None}, [(3, "a")]])
def test_a_name_or_value_that_is_neither_str_nor_bytes_is_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError, match="str or bytes"):
        to_pairs(bad)
