"""One connection to an ingest server for many producers, made again when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence

from aqueduct.api.client import CONNECT_TIMEOUT, ClientConnection, connect
from aqueduct.errors import (
    ChannelError,
    ConnectError,
    ConnectionLost,
    EndOfChannel,
    Refused,
    TLSError,
    Unauthenticated,
)
from aqueduct.ingest.dedup.scope import Fingerprint
from aqueduct.ingest.errors import IngestError, refusal_error
from aqueduct.ingest.identity import MAX_POSITIONS, TopicPosition
from aqueduct.ingest.protocol import EndStep, Refusal, Request
from aqueduct.ingest.server.permissions import HEADER
from aqueduct.ingest.settings import ATTENTIVE
from aqueduct.security import Trust

GIVE_UP_AFTER = 60.0
MIN_PAUSE = 0.05
MAX_PAUSE = 2.0
FATAL = (TLSError, Refused, Unauthenticated)
"""What trying again does not mend."""
LOST = (ChannelError, ConnectError, EndOfChannel, OSError)
"""What another connection may mend."""


class Client:
    """A connection to an ingest server that producers share.

    ::

        async with ingest.Client("localhost:4434") as client:
            async with ingest.Producer(client.address, "telemetry", client=client) as producer:
                await producer.send(b"21.5")

    It is made when it is first needed, and again when it was lost.
    """

    def __init__(
        self,
        address: str,
        *,
        trust: Trust | None = None,
        token: str | None = None,
        give_up_after: float = GIVE_UP_AFTER,
    ) -> None:
        self.address = address
        self._trust = trust or Trust()
        self._headers = {HEADER: f"Bearer {token}"} if token else None
        self._give_up_after = give_up_after
        self._turn = asyncio.Lock()
        self._connection: ClientConnection[Request] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the server; producers that still use this fail."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @contextlib.asynccontextmanager
    async def connection(self, patience: float) -> AsyncIterator[ClientConnection[Request]]:
        """The connection, for a producer; raises if there is none after so many seconds."""
        yield await self._connected(patience)

    async def _connected(self, patience: float) -> ClientConnection[Request]:
        async with self._turn:  # one makes it, and the others find it made
            self._check_open()
            connection = self._connection
            if connection is None or not connection.is_open:
                self._connection = None
                if connection is not None:
                    await connection.close()  # it is over, and has a socket
                connection = await connect(
                    self.address,
                    Request,
                    trust=self._trust,
                    headers=self._headers,
                    timeout=patience,
                    options=ATTENTIVE,
                )
                try:
                    self._check_open()
                except IngestError:
                    await connection.close()
                    raise
                self._connection = connection
            return connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise IngestError("this client was closed")

    async def end_step(
        self,
        topic: str,
        job: str,
        step: int,
        run: str,
        *,
        positions: Sequence[TopicPosition] = (),
        rows: Fingerprint | None = None,
        allow_extra: bool = False,
    ) -> None:
        """End a step of a job: producers opened for it later find `is_done`.

        Every part of the step has to be complete. ``rows`` is the sum of `Producer.fingerprint`
        over all parts. The server compares it with what is stored, and raises `StepConflict` if
        the step has ended before with other rows, or has rows that this run does not have; the
        latter are accepted with ``allow_extra``. Without ``rows`` nothing is compared. Ending a
        step again with the same rows is a no-op. ``positions`` are those of its producers
        (`Producer.position`): if the topic has lost the rows before them, this raises
        `TopicReplaced`, and the step does not end. The server checks the last 16: pass one for
        each start of the server, with the largest offsets.
        """
        pause, began = MIN_PAUSE, time.monotonic()
        while True:
            try:
                connection = await self._connected(patience_of(self._give_up_after))
                answer = await connection.entrypoint.call(
                    EndStep,
                    topic=topic,
                    job=job,
                    step=step,
                    run=run,
                    positions=list(positions)[-MAX_POSITIONS:],
                    rows=rows,
                    allow_extra=allow_extra,
                )
            except FATAL:
                raise
            except LOST as error:
                if time.monotonic() - began > self._give_up_after:
                    raise gave_up(self.address, self._give_up_after, error) from None
            else:
                if isinstance(answer, Refusal):
                    raise refusal_error(answer)
                return
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, MAX_PAUSE)


async def end_step(
    address: str,
    topic: str,
    job: str,
    step: int,
    run: str,
    *,
    rows: Fingerprint | None = None,
    allow_extra: bool = False,
    trust: Trust | None = None,
    token: str | None = None,
) -> None:
    """A step of a job is over, see `Client.end_step`; over a connection of its own."""
    async with Client(address, trust=trust, token=token) as client:
        await client.end_step(topic, job, step, run, rows=rows, allow_extra=allow_extra)


def patience_of(give_up_after: float) -> float:
    """How long to try to connect, once."""
    return min(CONNECT_TIMEOUT, max(give_up_after, MIN_PAUSE))


def gave_up(address: str, seconds: float, error: Exception) -> IngestError:
    """What is said of a server that was not there for too long."""
    return IngestError(
        f"{address} could not be reached for {seconds:g} s: {in_words(address, error)}"
    )


def in_words(address: str, error: Exception) -> str:
    """What is wrong, for those who know of servers and not of connections."""
    if isinstance(error, ConnectionLost):
        return f"the connection to {address} was lost: {error.reason or error}"
    return str(error)
