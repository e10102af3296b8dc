"""Ids and backoffs from the system's RNG."""

from aqueduct.ipc.system import SystemRandomness


def test_ids_are_unique() -> None:
    randomness = SystemRandomness()
    ids = [randomness.randbytes(16) for _ in range(5_000)]
    assert {len(each) for each in ids} == {16}
    assert len(set(ids)) == len(ids)


def test_ids_of_different_lengths_share_no_bytes() -> None:
    randomness = SystemRandomness()
    drawn = [randomness.randbytes(size) for size in (8, 16, 4_090, 16, 5_000, 8)]
    assert [len(each) for each in drawn] == [8, 16, 4_090, 16, 5_000, 8]
    tails = {each[-8:] for each in drawn} | {each[:8] for each in drawn}
    assert len(tails) == 10  # those of eight bytes are their own tails


def test_backoffs_are_between_their_bounds() -> None:
    randomness = SystemRandomness()
    assert all(0.05 <= randomness.uniform(0.05, 0.2) <= 0.2 for _ in range(1_000))
