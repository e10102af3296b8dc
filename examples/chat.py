"""Chat with rooms and presence: who joins sees who is there, and everybody sees who leaves.

A client joins a room with one request, which carries the channel of its lines and the channel of
the room's events. The request lasts as long as the membership: it ends when the client finishes its
lines, closes the events or disconnects, and then the others are told.
"""

import asyncio
import contextlib
from collections import defaultdict

import msgspec

import aqueduct
from aqueduct import Receiver, Sender


class Joined(msgspec.Struct, tag=True):
    name: str


class Said(msgspec.Struct, tag=True):
    name: str
    text: str


class Left(msgspec.Struct, tag=True):
    name: str


Event = Joined | Said | Left


class Join(msgspec.Struct):
    room: str
    name: str
    lines: Receiver[str]
    events: Sender[Event]


class Chat:
    """The server: the members of each room, by name."""

    def __init__(self) -> None:
        self.rooms: dict[str, dict[str, Join]] = defaultdict(dict)

    async def join(self, request: Join) -> None:
        members = self.rooms[request.room]
        if request.name in members:
            request.events.cancel()  # the name is taken
            return
        self.tell(request.room, Joined(request.name))
        members[request.name] = request  # before the first await: others join and leave meanwhile
        try:
            with contextlib.suppress(aqueduct.ChannelError):  # a client that disconnects leaves too
                for name in list(members):
                    if name in members:
                        await request.events.send(Joined(name))
                async for text in request.lines:
                    self.tell(request.room, Said(request.name, text))
        finally:  # also if the handler is cancelled, because the client closed the events
            del members[request.name]
            self.tell(request.room, Left(request.name))
            if not members:
                del self.rooms[request.room]

    def tell(self, room: str, event: Event) -> None:
        """Send an event to all members of a room, without waiting for any of them."""
        for member in self.rooms[room].values():
            try:
                member.events.send_nowait(event)
            except aqueduct.WouldBlock:  # too slow: this member has to join again
                member.events.cancel()
                member.lines.close()  # ends its handler
            except aqueduct.ChannelError:
                pass  # the member has left; its own handler removes it


class Member:
    """A client's membership of a room: `say` sends, and `async for` receives events."""

    def __init__(self, room: str, name: str) -> None:
        self.lines, their_lines = aqueduct.channel(str)
        their_events, self.events = aqueduct.channel(Event)
        self.request = Join(room, name, their_lines, their_events)

    async def join(self, connection: aqueduct.ClientConnection[Join]) -> None:
        await connection.entrypoint.send(self.request)

    async def leave(self) -> None:
        self.lines.finish()
        self.events.close()


async def main() -> None:
    tls, trust = aqueduct.dev_tls(), aqueduct.dev_trust()
    async with aqueduct.serve("127.0.0.1:0", Join, tls=tls) as server:
        serving = asyncio.create_task(server.serve(Chat().join))
        ann, bob = Member("garden", "ann"), Member("garden", "bob")
        async with aqueduct.connect(server.address, Join, trust=trust) as connection:
            await ann.join(connection)
            print("ann sees", await ann.events.receive())
            async with aqueduct.connect(server.address, Join, trust=trust) as other:
                await bob.join(other)
                print("ann sees", await ann.events.receive())
                print("bob sees", await bob.events.receive())
                print("bob sees", await bob.events.receive())
                await ann.lines.send("hello, bob")
                print("bob sees", await bob.events.receive())
                await bob.leave()
            print("ann sees", await ann.events.receive())
            print("ann sees", await ann.events.receive())
            await ann.leave()
        serving.cancel()


if __name__ == "__main__":
    asyncio.run(main())
