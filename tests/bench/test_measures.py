from bench.network.measures import ALL, ROWS, Kind


def test_every_row_belongs_to_a_measure_and_every_measure_has_a_row() -> None:
    assert {row.measure for row in ROWS} == {measure.name for measure in ALL}
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_peers_have_streams_round_trips_and_connections_and_nothing_else() -> None:
    shared = [measure.name for measure in ALL if not measure.ours_only]
    assert shared == ["R100", "R1K", "T64K", "L", "H"]


def test_only_memory_is_measured_once() -> None:
    assert [measure.kind for measure in ALL if measure.once] == [Kind.HOLD]
