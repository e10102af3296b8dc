import pytest

from bench.network.peers.over_streams import Splitter, frame


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_chunk_boundaries_do_not_change_the_frames(piece: int) -> None:
    messages = [bytes([number]) * number for number in range(20)]
    stream = b"".join(map(frame, messages))
    splitter = Splitter()
    found: list[bytes] = []
    for start in range(0, len(stream), piece):
        found += splitter.split(stream[start : start + piece])
    assert found == messages
