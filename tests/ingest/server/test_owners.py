"""Names belong to the token that used them first: of producers, jobs and readers."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from aqueduct.ingest.client.connection import Client
from aqueduct.ingest.client.producer import Producer
from aqueduct.ingest.dedup.scope import WriteScope
from aqueduct.ingest.errors import IngestError, NotAllowed
from aqueduct.ingest.server.owners import (
    KEY,
    Owners,
    check_owner,
    owner_of_token,
    read_key,
    tag_of,
    tagged,
)
from aqueduct.ingest.server.permissions import Grant, Permissions
from aqueduct.ingest.server.server import IngestServer
from aqueduct.ingest.storage.local.files import LocalBlob
from tests.ingest.jobbing import ids_of
from tests.ingest.lab import Lab
from tests.ingest.storing import opened

MINE, THEIRS, ROTATED, ADMIN = (f"token-{name}-0123456789" for name in ("m", "t", "r", "a"))
NAMELESS = f"token-n-{'x' * 20}"
TOKENS = Permissions(
    {
        MINE: Grant(["*"], ["*"], "sensors"),
        ROTATED: Grant(["*"], ["*"], "sensors"),
        THEIRS: Grant(["*"], ["*"], "others"),
        NAMELESS: Grant(["*"], ["*"]),
        ADMIN: Grant(["*"], ["*"], admin=True),
    }
)


def serve(lab: Lab, **more: Any) -> IngestServer:
    return lab.serve(permissions=TOKENS, partitions=1, **more)


async def values(lab: Lab, server: IngestServer) -> list[bytes]:
    async with lab.reader(server, token=MINE) as reader:
        (info,) = await reader.topics("topic")
        part = info.partitions[0]
        return [
            row["value"]
            async for batch in reader.read("topic", 0, part.first_offset, part.next_offset)
            for row in batch.to_pylist()
        ]


@pytest.mark.parametrize("mine", [MINE, NAMELESS])
async def test_a_producer_id_of_another_token_is_rejected_and_its_owner_unaffected(
    lab: Lab, mine: str
) -> None:
    async with serve(lab) as server, lab.producer(server, producer_id="p", token=mine) as owner:
        await owner.send_and_wait(b"1")
        with pytest.raises(NotAllowed, match="producer id 'p' belongs to another token; use"):
            await lab.producer(server, producer_id="p", token=THEIRS).open()
        await owner.send_and_wait(b"2")  # it was not superseded
    async with serve(lab) as server:  # also after a restart
        with pytest.raises(NotAllowed, match="belongs to another token"):
            await lab.producer(server, producer_id="p", token=THEIRS).open()
        async with lab.producer(server, producer_id="p", token=mine) as again:
            assert again.committed == 2
            await again.send_and_wait(b"3")
        await server._in_writer(server._store.rotate_old, True)
        await server._in(server._upkeep, server._store.roll)
    async with serve(lab) as server:  # also from the manifest
        with pytest.raises(NotAllowed, match="belongs to another token"):
            await lab.producer(server, producer_id="p", token=THEIRS).open()
        assert await values(lab, server) == [b"1", b"2", b"3"]


async def test_a_token_of_the_same_name_and_an_admin_may_continue_an_id(lab: Lab) -> None:
    async with serve(lab) as server:
        for number, token in enumerate((MINE, ROTATED, ADMIN, MINE)):
            async with lab.producer(server, producer_id="p", token=token) as producer:
                assert producer.committed == number
                await producer.send_and_wait(b"%d" % number)
        with pytest.raises(NotAllowed):
            await lab.producer(server, producer_id="p", token=THEIRS).open()
        assert len(await values(lab, server)) == 4


async def test_an_id_stored_without_a_token_belongs_to_the_first_token_that_uses_it(
    lab: Lab,
) -> None:
    async with lab.serve(partitions=1) as server:
        for number in range(2):  # any client without a token
            async with lab.producer(server, producer_id="p") as producer:
                assert producer.committed == number
                await producer.send_and_wait(b"x")
    assert not (lab.directory / KEY).exists()
    async with serve(lab) as server:
        async with lab.producer(server, producer_id="p", token=MINE) as producer:
            assert producer.committed == 2
        with pytest.raises(NotAllowed):
            await lab.producer(server, producer_id="p", token=THEIRS).open()


async def write(client: Client, step: int, run: str) -> None:
    scope = WriteScope("job", step, run, 0)
    async with Producer(client.address, "topic", scope=scope, client=client) as producer:
        await producer.send_many([b"%d" % step], ids=ids_of([b"%d" % step]))
        await producer.complete()
    await client.end_step("topic", "job", step, run)


async def test_a_job_belongs_to_the_token_that_began_it(lab: Lab) -> None:
    run = uuid.uuid4().hex
    async with (
        serve(lab) as server,
        Client(server.address, trust=lab.trust, token=MINE) as client,
    ):
        await write(client, 0, run)
    async with serve(lab) as server:
        async with Client(server.address, trust=lab.trust, token=THEIRS) as client:
            with pytest.raises(NotAllowed, match="job 'job' belongs to another token"):
                await write(client, 1, uuid.uuid4().hex)
            with pytest.raises(NotAllowed, match="job 'job' belongs to another token"):
                await client.end_step("topic", "job", 99, run)
        async with Client(server.address, trust=lab.trust, token=ROTATED) as client:
            await write(client, 1, uuid.uuid4().hex)
        assert await values(lab, server) == [b"0", b"1"]


async def test_a_named_reader_belongs_to_the_token_that_named_it(lab: Lab) -> None:
    async with serve(lab) as server:
        async with lab.producer(server, token=MINE) as producer:
            await producer.send_and_wait(b"x")
        async with lab.reader(server, token=NAMELESS) as reader:
            await reader.advance("r", "topic", {0: 0})
    async with serve(lab) as server:
        async with lab.reader(server, token=THEIRS) as reader:
            for offsets in ({0: 1}, {}):
                with pytest.raises(NotAllowed, match="reader 'r' belongs to another token"):
                    await reader.advance("r", "topic", offsets)
        assert server.topics()[0].readers == {"r": {0: 0}}
        async with lab.reader(server, token=ADMIN) as reader:
            await reader.advance("r", "topic", {})
        async with lab.reader(server, token=THEIRS) as reader:  # forgotten, so it has no owner
            await reader.advance("r", "topic", {0: 1})
        assert server.topics()[0].readers == {"r": {0: 1}}


async def test_stored_owners_reveal_no_token(lab: Lab) -> None:
    async with (
        serve(lab) as server,
        lab.producer(server, producer_id="p", token=NAMELESS) as producer,
    ):
        await producer.send_and_wait(b"x")
    stored = b"".join(path.read_bytes() for path in lab.directory.rglob("*") if path.is_file())
    assert b"k-" in stored
    assert NAMELESS.encode() not in stored
    assert (lab.directory / KEY).stat().st_mode & 0o777 == 0o600
    one, other = (owner_of_token(b"digest", bytes(31) + key) for key in (b"1", b"2"))
    assert one != other


def test_a_key_is_made_once_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    assert read_key(tmp_path) == read_key(tmp_path)
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(IngestError, match=r"has 5 bytes, not 32; restore it from a backup"):
        read_key(tmp_path)


def test_the_owner_is_distinguished_from_the_instance() -> None:
    assert tag_of(tagged("n-a.b", "abc")) == tag_of(tagged("n-a.b", "")) == "n-a.b"
    assert tagged("", "abc") == "abc"
    assert tag_of("abc") == tag_of("") == ""
    for known, owner in (("", "a"), ("a", ""), ("", ""), ("a", "a")):
        check_owner("thing", "x", known, owner)
    with pytest.raises(NotAllowed, match="thing 'x' belongs to another token"):
        check_owner("thing", "x", "a", "b")


def test_owners_are_kept_for_as_long_as_what_they_own(tmp_path: Path) -> None:
    path = tmp_path / "owners.json"
    blob = LocalBlob(path)
    owners = Owners(blob, "job")
    owners.claim({"a": "", "b": "x", "gone": "x"}, {"a", "b"})
    owners.claim({"b": "y"}, {"a", "b"})
    owners = Owners(blob, "job")
    owners.check("a", "y")
    with pytest.raises(NotAllowed):
        owners.check("b", "y")
    owners.claim({}, {"a"})
    Owners(blob, "job").check("b", "y")
    path.write_bytes(b"damage")
    damaged = Owners(blob, "job")
    damaged.check("b", "")
    with pytest.raises(IngestError, match=r"the owners of jobs cannot be read: .*restore the file"):
        damaged.check("b", "y")


def test_parts_of_a_known_job_do_not_claim_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[str] = []
    claim = Owners.claim

    def noted(self: Owners, names: dict[str, str], keep: Any) -> None:
        claims.extend(names)
        claim(self, names, keep)

    monkeypatch.setattr(Owners, "claim", noted)
    with opened(tmp_path) as store:
        topic = store.topic_to_write("t", None)
        for job, owner in (("mine", "n-me"), ("unowned", "")):
            for part in range(20):
                store.begin(topic, WriteScope(job, 0, "0" * 32, part), owner=owner)
            store.end_step("t", job, 0, "0" * 32, owner=owner)
        assert claims == ["mine", "unowned"]
        store.begin(topic, WriteScope("unowned", 1, "0" * 32, 0), owner="n-me")
        with pytest.raises(NotAllowed, match="'unowned' belongs to another token"):
            store.begin(topic, WriteScope("unowned", 1, "0" * 32, 0), owner="n-others")
