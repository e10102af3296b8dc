"""An actor: one task owns the state, and other tasks reach it only through a channel, its mailbox.

The client creates the mailbox and sends the receiver to the server; the sender is the address of
the actor.
"""

import asyncio
import contextlib
from typing import Any

import msgspec

import aqueduct
from aqueduct import Connection, Receiver, Sender


class Deposit(msgspec.Struct, tag=True):
    amount: int


class Withdraw(msgspec.Struct, tag=True):
    amount: int
    allowed: Sender[bool]


class Balance(msgspec.Struct, tag=True):
    reply: Sender[int]


Command = Deposit | Withdraw | Balance


class OpenAccount(msgspec.Struct):
    owner: str
    mailbox: Receiver[Command]


async def account(owner: str, mailbox: Receiver[Command]) -> None:
    """Run the actor. It needs no lock, because it handles one command at a time."""
    balance = 0
    async for command in mailbox:
        match command:
            case Deposit(amount):
                balance += amount
            case Withdraw(amount, allowed):
                await answer(allowed, amount <= balance)
                balance -= amount if amount <= balance else 0
            case Balance(reply):
                await answer(reply, balance)
    print(f"the account of {owner} is closed with {balance}")


async def answer(reply: Sender[Any], value: Any) -> None:
    """Answer a command; a caller that has given up does not end the actor."""
    with contextlib.suppress(aqueduct.ChannelError):
        await reply.send(value)


async def bank(connection: Connection[OpenAccount]) -> None:
    async with asyncio.TaskGroup() as actors:
        async for request in connection.entrypoint:
            actors.create_task(account(request.owner, request.mailbox))


async def customer(address: str, owner: str) -> None:
    async with aqueduct.connect(address, OpenAccount, trust=aqueduct.dev_trust()) as connection:
        mine, theirs = aqueduct.channel(Command)
        await connection.entrypoint.send(OpenAccount(owner, theirs))
        connection.entrypoint.finish()
        async with mine:
            await mine.send(Deposit(100))
            for amount in (30, 80):
                allowed = await mine.call(Withdraw, amount=amount)
                print(f"{owner} takes {amount}: {'yes' if allowed else 'no'}")
            print(f"{owner} has", await mine.call(Balance))
        await connection.wait_closed()  # the bank closes after the last account


async def main() -> None:
    async with aqueduct.serve("127.0.0.1:0", OpenAccount, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.run(bank))
        await customer(server.address, "ann")
        serving.cancel()


asyncio.run(main())
