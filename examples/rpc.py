"""Remote procedure calls: each request carries the channel for its own answer."""

import asyncio
import contextlib
from typing import Any

import msgspec

import aqueduct
from aqueduct import Connection, Sender


class Problem(msgspec.Struct, tag=True):
    """An answer with an error; the connection stays open."""

    text: str


class Quotient(msgspec.Struct, tag=True):
    value: float


class Divide(msgspec.Struct):
    dividend: float
    divisor: float
    answer: Sender[Quotient | Problem]


async def serve(connection: Connection[Divide]) -> None:
    async for request in connection.entrypoint:
        answer: Quotient | Problem
        try:
            answer = Quotient(request.dividend / request.divisor)
        except ZeroDivisionError as error:
            answer = Problem(str(error))
        # A caller that has given up ends neither the connection nor other calls.
        with contextlib.suppress(aqueduct.ChannelError):
            await request.answer.send(answer)


async def ask(address: str) -> None:
    async with aqueduct.connect(address, Divide, trust=aqueduct.dev_trust()) as connection:

        async def divide(dividend: float, divisor: float) -> Any:
            return await connection.entrypoint.call(
                Divide, dividend=dividend, divisor=divisor, timeout=5
            )

        print("10 / 4 =", (await divide(10, 4)).value)
        print("1 / 0 =", (await divide(1, 0)).text)
        answers = await asyncio.gather(*(divide(n, 2) for n in range(5)))  # concurrently
        print("halves:", [answer.value for answer in answers])


async def main() -> None:
    async with aqueduct.serve("127.0.0.1:0", Divide, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.run(serve))
        await ask(server.address)
        serving.cancel()


asyncio.run(main())
