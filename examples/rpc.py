"""Remote procedure calls: each request declares the type of its reply."""

import asyncio

import aqueduct
from aqueduct import CallError, Request


class Divide(Request[float]):
    dividend: float
    divisor: float


async def divide(request: Divide) -> float:
    """Return the reply; the caller's `call` raises the `CallError`."""
    if request.divisor == 0:
        raise CallError("division-by-zero", f"cannot divide {request.dividend:g} by zero")
    return request.dividend / request.divisor


async def ask(address: str) -> None:
    async with aqueduct.connect(address, Divide, trust=aqueduct.dev_trust()) as connection:
        call = connection.entrypoint.call
        print("10 / 4 =", await call(Divide(10, 4), timeout=5))
        try:
            await call(Divide(1, 0), timeout=5)
        except CallError as error:
            print("1 / 0:", error.text)
        halves = await asyncio.gather(*(call(Divide(n, 2), timeout=5) for n in range(5)))
        print("halves:", halves)  # the calls ran concurrently


async def main() -> None:
    async with aqueduct.serve("127.0.0.1:0", Divide, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.serve(divide))
        await ask(server.address)
        serving.cancel()


asyncio.run(main())
