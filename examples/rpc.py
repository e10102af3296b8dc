"""An RPC service: five methods on a store of texts, a token for each user, and errors with codes.

A request is a class that says what its answer is. A method that streams has a channel in its
request: `Keys` sends many answers, `Load` receives many values.
"""

import asyncio
import contextlib
import hmac
from functools import partial

import msgspec

import aqueduct
from aqueduct import Receiver, Sender


class Get(aqueduct.Request[str]):
    key: str


class Put(aqueduct.Request[None]):
    key: str
    value: str


class Delete(aqueduct.Request[bool]):
    """The answer is whether the key was there."""

    key: str


class Load(aqueduct.Request[int]):
    """Put all pairs that arrive; the answer is how many."""

    pairs: Receiver[tuple[str, str]]


class Keys(msgspec.Struct, tag=True):
    """Send all keys with a prefix."""

    prefix: str
    keys: Sender[str]


Method = Get | Put | Delete | Load | Keys

TOKENS = {"token-of-ann": "ann", "token-of-guest": "guest"}
WRITERS = {"ann"}


def user_of(headers: aqueduct.Headers) -> str | None:
    """Return the user whose token a client has sent."""
    sent = headers.get("authorization", b"") or b""
    known = (user for token, user in TOKENS.items() if hmac.compare_digest(token.encode(), sent))
    return next(known, None)


def accept(headers: aqueduct.Headers, peer: object) -> aqueduct.Accept:
    user = user_of(headers)
    if user is None:
        raise aqueduct.Refuse("unknown token", unauthenticated=True)
    return aqueduct.Accept(user, headers={"user": user})


class Store:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    async def handle_client(self, connection: aqueduct.ServerConnection[Method]) -> None:
        await connection.serve(partial(self.handle, connection.identity))

    async def handle(self, user: str | None, request: Method) -> object:
        """Return the answer, or raise a `CallError` that the caller gets."""
        if isinstance(request, Put | Delete | Load) and user not in WRITERS:
            raise aqueduct.CallError("forbidden", f"{user} may only read")
        match request:
            case Get(key=key):
                if key not in self.values:
                    raise aqueduct.CallError("not-found", f"no key {key!r}")
                return self.values[key]
            case Put(key=key, value=value):
                self.values[key] = value
            case Delete(key=key):
                return self.values.pop(key, None) is not None
            case Load(pairs=pairs):
                loaded = {key: value async for key, value in pairs}  # all of them, or none
                self.values.update(loaded)
                return len(loaded)
            case Keys(prefix=prefix, keys=keys):
                async with keys:
                    for key in sorted(self.values):
                        if key.startswith(prefix):
                            await keys.send(key)
        return None


async def use(address: str, trust: aqueduct.Trust) -> None:
    token = {"authorization": "token-of-ann"}
    async with aqueduct.connect(address, Method, trust=trust, headers=token) as connection:
        call = connection.entrypoint.call
        await call(Put(key="color", value="blue"), timeout=5)
        print("color is", await call(Get(key="color"), timeout=5))

        pairs, their_pairs = aqueduct.channel(tuple[str, str])
        async with pairs:
            for number in range(3):
                await pairs.send((f"number-{number}", str(number)))
        print("loaded", await call(Load(pairs=their_pairs), timeout=5))

        their_keys, keys = aqueduct.channel(str)
        await connection.entrypoint.send(Keys("number", their_keys))
        print([key async for key in keys])

        print("deleted:", await call(Delete(key="color"), timeout=5))
        try:
            await call(Get(key="color"), timeout=5)
        except aqueduct.CallError as error:
            print(error)


async def main() -> None:
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with aqueduct.serve("127.0.0.1:0", Method, tls=tls, accept=accept) as server:
        serving = asyncio.create_task(server.run(Store().handle_client))
        await use(server.address, trust)
        with contextlib.suppress(aqueduct.Unauthenticated):
            await aqueduct.connect(server.address, Method, trust=trust)
            print("never printed: a client without a token is refused")
        serving.cancel()


if __name__ == "__main__":
    asyncio.run(main())
