"""Producers: records are stored once and in order, and acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aqueduct.errors import ConnectError, TLSError
from aqueduct.ingest.client import connection as clients
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.errors import IngestError, NotAllowed, RefusedRecords
from aqueduct.ingest.partitioning import partition_of
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.ingest.settings import CLIENT_QUIC_SETTINGS
from aqueduct.security import make_authority, trust
from aqueduct.transport.settings import QuicSettings
from tests.ingest.lab import Lab, eventually
from tests.ports import closed_port
from tests.transport.quic.inside import listener_of


async def test_a_row_has_every_field_of_its_record(lab: Lab) -> None:
    async with lab.serve() as server:
        async with lab.producer(server, producer_id="sensor-7", partitions=2) as producer:
            await producer.send(
                b"21.5",
                key=b"kitchen",
                headers={"unit": b"C", "empty": b""},
                timestamp=1_700_000_000.25,
            )
            await producer.send(b"", partition=1)
        rows = {row["producer_sequence"]: row for row in await lab.rows(server)}
    assert rows[1]["topic"] == "topic"
    assert rows[1]["partition"] == partition_of(b"kitchen", 1, 2)
    assert (rows[1]["key"], rows[1]["value"]) == (b"kitchen", b"21.5")
    assert rows[1]["headers"] == [{"name": "unit", "value": b"C"}, {"name": "empty", "value": b""}]
    assert rows[1]["timestamp"].timestamp() == 1_700_000_000.25
    assert rows[1]["producer_id"] == "sensor-7"
    assert rows[1]["ingest_time"] >= rows[2]["timestamp"]
    assert (rows[2]["key"], rows[2]["value"], rows[2]["partition"]) == (None, b"", 1)


@pytest.mark.parametrize("scheme", ["aqueduct+quic://", "aqueduct+tcp://"])
async def test_records_are_stored_and_read_over_each_transport(lab: Lab, scheme: str) -> None:
    async with lab.serve(f"{scheme}127.0.0.1:0") as server:
        assert server.address.startswith(scheme)
        async with lab.producer(server) as producer:
            for number in range(500):
                await producer.send(b"%d" % number, key=b"same")
        rows = await lab.rows(server)
    assert [row["value"] for row in rows] == [b"%d" % number for number in range(500)]


async def test_records_of_one_producer_are_in_order_in_each_partition(lab: Lab) -> None:
    async with lab.serve() as server:

        async def produce(name: str) -> None:
            async with lab.producer(server, producer_id=name) as producer:
                for number in range(1, 3_001):
                    await producer.send(b"%d" % number, key=b"%d" % (number % 17))

        await asyncio.gather(*(produce(f"p{number}") for number in range(3)))
        rows = await lab.rows(server)
    for name in ("p0", "p1", "p2"):
        mine = [row for row in rows if row["producer_id"] == name]
        assert sorted(row["producer_sequence"] for row in mine) == list(range(1, 3_001))
        assert all(row["value"] == b"%d" % row["producer_sequence"] for row in mine)
        for partition in range(4):
            numbers = [row["producer_sequence"] for row in mine if row["partition"] == partition]
            assert numbers == sorted(numbers)
    for partition in range(4):
        offsets = [row["offset"] for row in rows if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))


async def test_send_and_wait_returns_the_partition_and_offset(lab: Lab) -> None:
    async with lab.serve() as server:
        async with lab.producer(server) as producer:
            for number in range(20):
                await producer.send(b"%d" % number, key=b"%d" % number)
            receipts = await asyncio.gather(
                *(
                    producer.send_and_wait(b"waited %d" % number, key=b"%d" % (number % 5))
                    for number in range(50)
                ),
                producer.send_and_wait(b"waited 50", partition=3),
            )
        rows = {(row["partition"], row["offset"]): row for row in await lab.rows(server)}
    for number, stored in enumerate(receipts):
        assert stored.offset is not None
        assert rows[stored.partition, stored.offset]["value"] == b"waited %d" % number


async def test_flush_waits_until_records_are_stored(lab: Lab) -> None:
    async with lab.serve() as server, lab.producer(server) as producer:
        assert producer.committed == 0
        for number in range(100):
            await producer.send(b"%d" % number)
            if number % 10 == 0:
                await producer.flush()
                assert producer.committed == number + 1
                assert len(await lab.rows(server)) == number + 1
        await producer.flush()
        await producer.flush()  # nothing is left to wait for


async def test_send_waits_while_the_buffer_is_full(lab: Lab, held: Any) -> None:
    async with lab.serve() as server, lab.producer(server, max_buffered=10_000) as producer:
        held.hold(server)
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(30):
                await producer.send(bytes(900))
                sent += 1

        sending = asyncio.create_task(send())
        await asyncio.sleep(0.2)
        assert sent == 10
        held.release()
        await sending
        await producer.flush()
        # A record larger than the whole buffer is sent alone.
        await producer.send(bytes(50_000))
        assert (await producer.send_and_wait(b"behind it")).offset is not None


async def test_a_send_cancelled_while_it_waits_sends_nothing(lab: Lab, held: Any) -> None:
    async with lab.serve() as server:
        async with lab.producer(server, max_buffered=1_000) as producer:
            held.hold(server)
            await producer.send(bytes(800))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await producer.send(b"never")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await producer.flush()
            held.release()
            await producer.send(b"last")
        assert [row["value"] for row in await lab.rows(server)] == [bytes(800), b"last"]


async def test_a_new_producer_continues_after_the_last_stored_record(lab: Lab) -> None:
    async with lab.serve() as server:
        async with lab.producer(server, producer_id="again") as producer:
            for number in range(1, 11):
                await producer.send(b"%d" % number, sequence=number)
        async with lab.producer(server, producer_id="again") as producer:
            assert producer.committed == 10
            for number in range(6, 21):  # the source is read again from the sixth record
                await producer.send(b"%d" % number, sequence=number)
            with pytest.raises(ValueError, match="record 30 was sent, but the next one is 21"):
                await producer.send(b"30", sequence=30)
        rows = await lab.rows(server)
    assert sorted(int(row["value"]) for row in rows) == list(range(1, 21))


async def test_records_survive_repeated_server_restarts(lab: Lab) -> None:
    server = lab.serve()
    await server.open()
    address = server.address
    producer = lab.producer(server, producer_id="steady")
    await producer.open()
    sent = 0
    for _ in range(3):
        await producer.flush()
        for _ in range(200):
            sent += 1
            await producer.send(b"%d" % sent)
        await server.close(grace=0.0)
        for _ in range(50):  # no server runs
            sent += 1
            await producer.send(b"%d" % sent)
        server = lab.serve(address)
        await server.open()
    await producer.close()
    assert producer.committed == sent
    assert producer.reconnects == 3
    rows = await lab.rows(server)
    await server.close()
    assert sorted(int(row["value"]) for row in rows) == list(range(1, sent + 1))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"value": bytes(101)}, "a record of 101 bytes; the server takes 100"),
        ({"value": bytes(50), "key": bytes(51)}, "a record of 101 bytes"),
        ({"value": bytes(50), "headers": {"name": bytes(47)}}, "a record of 101 bytes"),
        ({"value": b"", "partition": 4}, "topic topic has partitions 0 to 3"),
        ({"value": b"", "partition": -1}, "topic topic has partitions 0 to 3"),
    ],
)
async def test_a_record_that_cannot_be_stored_is_an_error_at_once(
    lab: Lab, options: dict[str, Any], sentence: str
) -> None:
    async with lab.serve(max_record=100) as server:
        async with lab.producer(server) as producer:
            with pytest.raises(IngestError, match=sentence):
                await producer.send(**options)
            await producer.send(b"good")
        assert [row["value"] for row in await lab.rows(server)] == [b"good"]


@pytest.mark.parametrize("timestamp", [1e12, -1e12])
async def test_a_timestamp_out_of_range_raises_at_once(lab: Lab, timestamp: float) -> None:
    async with lab.serve() as server, lab.producer(server) as producer:
        with pytest.raises(IngestError, match="years 1 to 9999"):
            await producer.send(b"", timestamp=timestamp)
        assert (await producer.send_and_wait(b"good")).offset == 0


async def test_only_bytes_are_records(lab: Lab) -> None:
    producer = Producer("localhost:1", "topic")
    with pytest.raises(IngestError, match="open the producer first"):
        await producer.send(b"")
    async with lab.serve() as server, lab.producer(server) as producer:
        with pytest.raises(TypeError, match="a record is bytes, not str"):
            await producer.send("text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "../up"}, "cannot be the name of a topic; take up to 100 letters"),
        ({"producer_id": "a b"}, "cannot be the name of a producer; take up to 100 letters"),
        ({"partitions": 65}, "a topic has from 1 to 64 partitions, not 65"),
        ({"topic": "there", "partitions": 3}, "topic there has 1 partitions, not 3; .* omit"),
    ],
)
async def test_an_invalid_producer_fails_to_open_with_the_reason(
    lab: Lab, options: dict[str, Any], sentence: str
) -> None:
    async with lab.serve() as server, lab.producer(server, "there", partitions=1):
        with pytest.raises(RefusedRecords, match=sentence):
            await lab.producer(server, **options).open()


async def test_a_producer_without_permission_fails_without_a_retry(lab: Lab) -> None:
    permissions = Permissions({"sesame": Grant(write=["mine.*"])})
    async with lab.serve(permissions=permissions) as server:
        with pytest.raises(NotAllowed, match="this token may not write to topic 'yours'"):
            await lab.producer(server, "yours", token="sesame").open()
        async with lab.producer(server, "mine.1", token="sesame") as producer:
            await producer.send(b"x")


async def test_a_second_producer_with_an_id_supersedes_the_first(lab: Lab) -> None:
    async with lab.serve() as server:
        first = lab.producer(server, producer_id="twin")
        await first.open()
        await first.send(b"1 of the first")
        await first.flush()
        async with lab.producer(server, producer_id="twin") as second:
            assert second.committed == 1
            with pytest.raises(RefusedRecords, match="another producer was opened with the id"):
                await first.send_and_wait(b"2 of the first")
            with pytest.raises(RefusedRecords, match="Use a different id for each producer"):
                await first.close()
            await second.send(b"2 of the second")
        values = [row["value"] for row in await lab.rows(server)]
    assert values == [b"1 of the first", b"2 of the second"]


async def test_pending_records_of_a_superseded_producer_are_not_attributed_to_its_successor(
    lab: Lab, held: Any
) -> None:
    async with lab.serve() as server:
        first = lab.producer(server, producer_id="twin")
        await first.open()
        held.hold(server)
        await first.send(b"1 of the first")
        await eventually(lambda: server._committer._held or held.is_reached, "it is under way")
        second = lab.producer(server, producer_id="twin")
        opening = asyncio.create_task(second.open())
        await asyncio.sleep(0.1)
        assert not opening.done()  # before that, the stored records of the first are unknown
        held.release()
        await opening
        assert second.committed == 1
        await second.send(b"2 of the second")
        await second.close()
        await first.abandon()
        values = [row["value"] for row in await lab.rows(server)]
    assert values == [b"1 of the first", b"2 of the second"]


async def test_records_of_another_producer_with_the_same_id_are_not_acknowledged(
    lab: Lab,
) -> None:
    server = lab.serve()
    await server.open()
    address = server.address
    first = lab.producer(server, producer_id="twin")
    await first.open()
    await server.close(grace=0.0)
    await first.send(b"1 of the first")
    # No server accepts the first one before the second one has sent.
    async with lab.serve() as elsewhere, lab.producer(elsewhere, producer_id="twin") as second:
        for number in range(3):
            await second.send(b"%d of the second" % number)
    async with lab.serve(address):
        with pytest.raises(IngestError, match="was opened with the id 'twin'"):
            await first.flush()
    await first.abandon()


async def test_a_server_without_the_acknowledged_records_is_detected(lab: Lab) -> None:
    async with lab.serve() as server:
        address = server.address
        producer = lab.producer(server, producer_id="p")
        await producer.open()
        await producer.send(b"x")
        await producer.flush()
    lab.directory = lab.directory.with_name("other")
    async with lab.serve(address):
        await producer.send(b"y")
        with pytest.raises(IngestError, match="it is missing, and the offsets belong to"):
            await producer.flush()
    await producer.abandon()


async def test_a_producer_gives_up_on_an_unreachable_server(lab: Lab) -> None:
    with closed_port() as port:
        producer = Producer(f"127.0.0.1:{port}", "topic", trust=lab.trust, give_up_after=2.0)
        with pytest.raises(IngestError, match=r"could not be reached for 2 s: nothing listens"):
            await producer.open()
        with pytest.raises(IngestError, match="could not be reached"):
            await producer.send(b"")


async def test_a_server_that_stops_answering_is_detected(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CLIENT_QUIC_SETTINGS.idle_timeout < 10
    options = QuicSettings(idle_timeout=0.3, keep_alive=0.1)
    monkeypatch.setattr(clients, "CLIENT_QUIC_SETTINGS", options)
    async with lab.serve() as server, lab.producer(server) as producer:
        await producer.send(b"1")
        await producer.flush()
        endpoint = listener_of(server._server)
        endpoint.loop.remove_reader(endpoint.udp.socket)
        await producer.send(b"2")
        await eventually(lambda: producer.reconnects, "the silence is noticed")
        assert producer.disconnect_reason.startswith(
            f"the connection to {server.address} was lost: nothing"
        )
        endpoint.loop.add_reader(endpoint.udp.socket, endpoint._readable)
        await producer.flush()
        assert len(await lab.rows(server)) == 2


async def test_an_untrusted_server_is_not_retried(lab: Lab) -> None:
    async with lab.serve() as server:
        stranger = trust(make_authority("stranger").certificate)
        with pytest.raises(TLSError):
            await Producer(server.address, "topic", trust=stranger).open()


async def test_an_abandoned_producer_fails_all_waiting_calls(lab: Lab, held: Any) -> None:
    async with lab.serve() as server:
        producer = lab.producer(server)
        await producer.open()
        held.hold(server)
        await producer.send(b"x")
        waiting = asyncio.gather(
            producer.flush(), producer.send_and_wait(b"y"), return_exceptions=True
        )
        await asyncio.sleep(0.05)
        await producer.abandon()
        assert [str(error) for error in await waiting] == ["this producer was closed"] * 2
        held.release()


async def test_an_error_in_the_block_abandons_the_producer(lab: Lab, held: Any) -> None:
    async with lab.serve() as server:

        async def fail() -> None:
            async with lab.producer(server) as producer:
                held.hold(server)
                await producer.send(b"x")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        held.release()


async def test_a_cancelled_producer_releases_its_stream(lab: Lab) -> None:
    async with lab.serve(max_streams=1) as server:

        async def produce() -> None:
            async with lab.producer(server, producer_id="one") as producer:
                while True:
                    await producer.send(bytes(100))

        task = asyncio.create_task(produce())
        await eventually(lambda: server.metrics.records, "records come")
        with pytest.raises(RefusedRecords, match="1 producers send already"):
            await lab.producer(server, producer_id="two").open()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not server._sending, "it no longer sends")
        async with lab.producer(server, producer_id="two") as producer:
            await producer.send(b"x")


async def test_the_token_appears_in_no_repr_log_or_error(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    permissions = Permissions({"a very secret token": Grant(write=["*"])})
    async with lab.serve(permissions=permissions) as server:
        producer = lab.producer(server, token="a very secret token")
        await producer.open()
        shown = [repr(producer), repr(permissions), repr(server), str(vars(permissions))]
        with pytest.raises(ConnectError) as caught:
            await lab.producer(server, token="another secret token").open()
        shown += [repr(caught.value), caplog.text]
        await producer.close()
    assert not [text for text in shown if "secret" in text]


async def test_a_cancelled_open_leaves_nothing_behind(lab: Lab) -> None:
    server = lab.serve()
    await server.open()
    address = server.address
    producer = lab.producer(server, producer_id="one")
    await server.close()
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await producer.open()
    assert asyncio.all_tasks() == before
    with pytest.raises(IngestError, match="was closed"):
        await producer.send(b"x")
    async with lab.serve(address) as again, lab.producer(again, producer_id="one") as real:
        await real.send(b"x")
        await asyncio.sleep(0.3)
        await real.flush()


async def test_a_producer_can_be_opened_once_and_closed_repeatedly(lab: Lab) -> None:
    async with lab.serve() as server:
        async with lab.producer(server) as producer:
            with pytest.raises(IngestError, match="was opened already; make another one"):
                await producer.open()
            await producer.send(b"x")
            await producer.close()
            await producer.close()
            assert not producer.is_connected
        with pytest.raises(IngestError, match="was closed"):
            await producer.send(b"y")
        assert len(await lab.rows(server)) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"key": "kitchen"}, "a key is bytes, not str"),
        ({"key": 5}, "a key is bytes, not int"),
        ({"headers": {"a": "text"}}, "header 'a' is bytes, not str"),
        ({"headers": {1: b""}}, "the name of a header is a str, not int"),
        ({"headers": [("a", b"")]}, "headers are names and bytes in a dict, not list"),
        ({"partition": "0"}, "a partition is a number, not str"),
        ({"timestamp": "now"}, "a timestamp is seconds since 1970, not str"),
    ],
)
async def test_a_record_of_the_wrong_type_raises_and_the_others_are_stored(
    lab: Lab, options: Any, sentence: str
) -> None:
    async with lab.serve() as server:
        async with lab.producer(server) as producer:
            await producer.send(b"good")
            with pytest.raises(TypeError, match=sentence):
                await producer.send(b"bad", **options)
            with pytest.raises(IngestError, match="65 headers; it may have 64"):
                await producer.send(b"", headers={str(number): b"" for number in range(65)})
        assert [row["value"] for row in await lab.rows(server)] == [b"good"]


async def test_records_for_alternating_partitions_share_a_batch(lab: Lab) -> None:
    async with lab.serve() as server:
        async with lab.producer(server) as producer:
            for number in range(1_000):
                chosen = number % 5 if number % 5 < 4 else None
                await producer.send(b"%d" % number, partition=chosen, key=b"%d" % number)
            receipts = await asyncio.gather(
                *(producer.send_and_wait(b"%d" % each, partition=each) for each in range(4))
            )
            await producer.flush()
        assert server.metrics.commits < 20
        rows = await lab.rows(server)
    assert [stored.partition for stored in receipts] == [0, 1, 2, 3]
    where = {(row["partition"], row["offset"]): row["value"] for row in rows}
    for each, stored in enumerate(receipts):
        assert stored.offset is not None
        assert where[stored.partition, stored.offset] == b"%d" % each
    for row in rows:
        number = row["producer_sequence"] - 1
        if number < 1_000:
            by_key = partition_of(b"%d" % number, 0, 4)
            assert row["partition"] == (number % 5 if number % 5 < 4 else by_key)
