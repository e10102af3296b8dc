"""Reading a range: retries over lost connections, and data loss is never silent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest

from aqueduct.errors import AqueductError, ConnectionLost, ConnectTimeout
from aqueduct.ingest.errors import IngestError, UnknownTopic
from aqueduct.ingest.identity import TopicPosition
from aqueduct.ingest.protocol import PartitionInfo, TopicInfo
from aqueduct.security import ServerTLS
from aqueduct.spark.backend import Backend, source_backends
from aqueduct.spark.errors import DataLoss, SourceError
from aqueduct.spark.options import source_options
from aqueduct.spark.source import fetch as fetching
from aqueduct.spark.source.fetch import fetch
from aqueduct.spark.source.plan import OffsetRange
from tests.spark.landing import Landing

WANTED = OffsetRange("logs", 0, 10, 20)
Step = list[int] | AqueductError


@pytest.fixture(autouse=True)
def retry_delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the delays between attempts instead of waiting."""
    waited: list[float] = []
    monkeypatch.setattr("aqueduct.spark.source.fetch.time.sleep", waited.append)
    return waited


class Scripted(Backend):
    """Returns scripted rows and errors: one list for each read."""

    def __init__(
        self, *script: list[Step], held: tuple[int, int] = (0, 100), path: str = ""
    ) -> None:
        super().__init__(path=path or None, server="host:1")
        self.__dict__.update(asked=[], forgotten=[], script=list(script), held=held)

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        position: TopicPosition | None = None,
    ) -> Iterator[pa.RecordBatch]:
        self.__dict__["asked"].append((start, end))
        for step in self.__dict__["script"].pop(0):
            if isinstance(step, AqueductError):
                raise step
            yield pa.record_batch({"offset": pa.array(step, pa.int64())})

    def topics(self, topic: str | None = None) -> list[TopicInfo]:
        return [TopicInfo("logs", [PartitionInfo(0, *self.__dict__["held"])])]

    def disconnect(self) -> None:
        self.__dict__["forgotten"].append(True)

    @property
    def asked(self) -> list[tuple[int, int]]:
        return self.__dict__["asked"]  # type: ignore[no-any-return]


def offsets(backend: Backend, fail: bool = True) -> list[int]:
    return [
        offset
        for batch in fetch(backend, WANTED, fail)
        for offset in batch.column("offset").to_pylist()
    ]


ALL = list(range(10, 20))


def test_rows_are_yielded_in_order() -> None:
    assert offsets(Scripted([ALL[:4], ALL[4:]])) == ALL


def test_a_lost_connection_is_reopened_and_reading_continues_at_the_next_offset(
    retry_delays: list[float],
) -> None:
    backend = Scripted([ALL[:4], ConnectionLost("gone")], [ConnectTimeout("no")], [ALL[4:]])
    assert offsets(backend) == ALL
    assert backend.asked == [(10, 20), (14, 20), (14, 20)]
    assert len(backend.__dict__["forgotten"]) == len(retry_delays) == 2


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ConnectTimeout("no answer"), "server host:1 cannot be reached: no answer"),
        (ConnectionLost("gone"), "offsets 10 up to 20 on server host:1 failed at offset 10: gone"),
    ],
)
def test_an_unreachable_server_is_an_error_after_all_retries(
    error: AqueductError, fault: str
) -> None:
    with pytest.raises(SourceError, match=fault):
        offsets(Scripted([error], [error], [error], [error]))


def test_there_is_no_retry_after_the_retry_timeout(
    retry_delays: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_RETRY_TIMEOUT", 0.0)
    with pytest.raises(SourceError, match="cannot be reached: nothing was heard"):
        offsets(Scripted([ConnectTimeout("nothing was heard")]))
    assert retry_delays == []


def test_a_reader_that_the_server_disconnected_for_slowness_retries() -> None:
    backend = Scripted([ALL[:4], IngestError("no rows were taken for 30 s")], [ALL[4:]])
    assert offsets(backend) == ALL


def test_an_attempt_without_progress_is_an_error() -> None:
    backend = Scripted(
        [ALL[:4], IngestError("x.parquet, byte 7: bad")], [IngestError("x, byte 7: bad")]
    )
    with pytest.raises(SourceError, match=r"failed at offset 14: x, byte 7: bad; docs/ingest\.md"):
        offsets(backend)


@pytest.mark.parametrize(
    "rows", [[11, 12], [10, 12], [10, 10], list(range(10, 21)), [9, 10]], ids=str
)
def test_missing_or_duplicate_offsets_are_data_loss(rows: list[int]) -> None:
    with pytest.raises(
        DataLoss, match=r"logs partition 0, offsets 10 up to 20: .* where 10 is next"
    ):
        offsets(Scripted([rows]), fail=False)


def test_a_range_that_ends_early_is_data_loss() -> None:
    with pytest.raises(DataLoss, match="no rows from offset 14"):
        offsets(Scripted([ALL[:4]]))


def test_rows_removed_by_retention_are_data_loss_with_their_offsets() -> None:
    backend = Scripted([UnknownTopic("logs partition 0 has offsets from 15")], held=(15, 100))
    fault = "logs partition 0: offsets 10 up to 20 should be read, .* has offsets from 15"
    with pytest.raises(DataLoss, match=fault):
        offsets(backend)


def test_removed_rows_are_skipped_with_a_warning_without_fail_on_data_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Scripted([UnknownTopic("gone")], [ALL[5:]], held=(15, 100))
    with caplog.at_level(logging.WARNING, "aqueduct.spark"):
        assert offsets(backend, fail=False) == ALL[5:]
    assert "logs partition 0: offsets 10 up to 15 are missing and are skipped" in caplog.text


def test_rows_removed_while_reading_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    backend = Scripted([ALL[:2], UnknownTopic("gone")], [ALL[5:]], held=(15, 100))
    assert offsets(backend, fail=False) == ALL[:2] + ALL[5:]
    assert "offsets 12 up to 15" in caplog.text


def test_rows_missing_at_the_end_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    backend = Scripted([UnknownTopic("gone")], [ALL[:3]], held=(0, 13))
    assert offsets(backend, fail=False) == ALL[:3]
    assert "offsets 13 up to 20" in caplog.text


def test_rows_that_the_server_lists_but_does_not_send_are_data_loss() -> None:
    with pytest.raises(DataLoss, match="some are missing: strange"):
        offsets(Scripted([UnknownTopic("strange")]), fail=False)


def test_files_that_lag_behind_their_server_are_read_again(
    retry_delays: list[float],
) -> None:
    backend = Scripted([UnknownTopic("not yet")], [ALL], held=(0, 12), path="data")
    assert offsets(backend) == ALL
    assert len(retry_delays) == 1


@pytest.fixture(params=["directory", "server"])
def backend(
    request: pytest.FixtureRequest, landing: Landing, tls: ServerTLS, trust_ca: str
) -> Iterator[Callable[[], Backend]]:
    """Return a function that makes the backend of a landing, once the test has filled it."""
    with ExitStack() as stack:

        def make() -> Backend:
            if request.param == "directory":
                return Backend(path=landing.path)
            server = stack.enter_context(landing.served(tls))
            given = {"servers": server.address, "subscribe": "logs", "trustCa": trust_ca}
            return source_backends(source_options(given))[0]

        yield make


def test_rows_are_read_from_segments_and_logs(
    landing: Landing, backend: Callable[[], Backend]
) -> None:
    landing.write("logs", 50)
    landing.write("logs", 50, roll=False)
    end = landing.ends("logs")[0]
    batches = fetch(backend(), OffsetRange("logs", 0, 3, end), True)
    rows = pa.Table.from_batches(list(batches)).to_pylist()
    assert [row["offset"] for row in rows] == list(range(3, end))
    assert all(row["value"] == b"value %d" % row["producer_sequence"] for row in rows)


def test_an_error_names_the_damaged_segment(
    landing: Landing, backend: Callable[[], Backend]
) -> None:
    landing.write("logs", 50)
    (segment,) = (landing.directory / "logs" / "part=0").glob("*.parquet")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    fault = f"logs partition 0, offsets 0 up to 10 on .* failed at offset 0: .*{segment.name}"
    with pytest.raises(SourceError, match=fault):
        list(fetch(backend(), OffsetRange("logs", 0, 0, 10), True))


def test_a_removed_range_is_data_loss(landing: Landing, backend: Callable[[], Backend]) -> None:
    landing.write("logs", 50)
    first = landing.ends("logs")[0]
    landing.write("logs", 50)
    landing.drop("logs", 0)
    wanted = OffsetRange("logs", 0, 0, landing.ends("logs")[0])
    chosen = backend()
    with pytest.raises(DataLoss, match=f"offsets 0 up to {wanted.end} should be read"):
        list(fetch(chosen, wanted, True))
    left = pa.Table.from_batches(list(fetch(chosen, wanted, False))).column("offset").to_pylist()
    assert left == list(range(first, wanted.end))
