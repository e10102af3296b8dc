"""Tombstones of ended channels."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from aqueduct.protocol.channels import Tombstones
from aqueduct.protocol.config import Config
from tests.protocol.wires import from_client, from_server, to_client


def ended(channels: Iterable[int], config: Config, now: float = 0.0) -> Tombstones:
    tombstones = Tombstones(config)
    for channel in channels:
        tombstones.add(channel, now)
    return tombstones


@given(st.permutations(range(40)), st.integers(0, 40))
def test_an_ended_channel_is_remembered(order: list[int], how_many: int) -> None:
    """AQ-FORGET-4: in any order of ends, and no other channel."""
    tombstones = ended((from_client(index) for index in order[:how_many]), Config())
    remembered = {index for index in range(40) if from_client(index) in tombstones}
    assert remembered == set(order[:how_many])


def test_index_spaces_are_separate() -> None:
    tombstones = ended([from_client(3)], Config())
    assert from_client(3) in tombstones
    for other in (to_client(3), from_server(3), from_client(3, oneshot=True)):
        assert other not in tombstones


def test_adjacent_tombstones_take_one_range() -> None:
    """AQ-FORGET-4: a cap of one is enough for a million."""
    tombstones = ended((from_client(index) for index in range(10_000)), Config(max_remembered=1))
    tombstones.add(from_client(10_000), 99.0)
    assert all(from_client(index) in tombstones for index in range(10_001))


def test_tombstones_above_the_bound_are_kept_for_a_second() -> None:
    """AQ-FORGET-4."""
    scattered = [from_client(10 * index) for index in range(6)]
    tombstones = ended(scattered[:4], Config(max_remembered=4))
    tombstones.add(scattered[4], 1.0)
    assert scattered[4] in tombstones
    tombstones.add(scattered[5], 1.9)
    assert scattered[4] in tombstones
    tombstones.add(from_client(1000), 2.1)
    assert scattered[4] not in tombstones
    assert scattered[5] in tombstones
    assert all(channel in tombstones for channel in scattered[:4])


def test_the_number_of_tombstones_above_the_bound_is_bounded() -> None:
    """AQ-FORGET-4."""
    tombstones = ended(
        (from_client(10 * index) for index in range(10_000)), Config(max_remembered=8)
    )
    assert sum(from_client(10 * index) in tombstones for index in range(10_000)) <= 16
