"""A shop's stock, an application that is tested without sockets: see test_shop.py."""

import asyncio
import sys

import msgspec

import aqueduct
from aqueduct import Sender


class Reserve(aqueduct.Request[int]):
    """Reserve pieces of an article; the answer is how many are left."""

    article: str
    pieces: int


class Follow(msgspec.Struct, tag=True):
    """Send the stock of an article now, and whenever it changes."""

    article: str
    stock: Sender[int]


Request = Reserve | Follow


class Shop:
    def __init__(self, stock: dict[str, int]) -> None:
        self.stock = stock
        self.changed = asyncio.Condition()

    async def handle(self, request: Request) -> int | None:
        if request.article not in self.stock:
            raise aqueduct.CallError("unknown-article", request.article)
        if isinstance(request, Reserve):
            return await self.reserve(request.article, request.pieces)
        sent: int | None = None
        while True:  # until the client closes its receiver, which cancels this handler
            async with self.changed:
                while self.stock[request.article] == sent:
                    await self.changed.wait()
                sent = self.stock[request.article]
            await request.stock.send(sent)

    async def reserve(self, article: str, pieces: int) -> int:
        async with self.changed:
            if pieces > self.stock[article]:
                raise aqueduct.CallError("sold-out", f"{self.stock[article]} left")
            self.stock[article] -= pieces
            self.changed.notify_all()
            return self.stock[article]


async def order(address: str, trust: aqueduct.Trust, basket: dict[str, int]) -> list[str]:
    """Reserve a basket, and return the articles that were sold out."""
    missing = []
    async with aqueduct.connect(address, Request, trust=trust) as connection:
        for article, pieces in basket.items():
            try:
                await connection.entrypoint.call(Reserve(article=article, pieces=pieces), timeout=1)
            except aqueduct.CallError as error:
                if error.code != "sold-out":
                    raise
                missing.append(article)
    return missing


async def main(address: str) -> None:
    async with aqueduct.serve(address, Request, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.serve(Shop({"tea": 3, "cups": 1}).handle))
        print("missing:", await order(server.address, aqueduct.dev_trust(), {"tea": 2, "cups": 2}))
        serving.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:0"))
