"""An actor: one object owns the state, and receives commands through its mailbox, a channel.

The client creates the mailbox and sends the receiving half to the server. The sending half is the
address of the actor.
"""

import asyncio

import msgspec

import aqueduct
from aqueduct import Receiver, Request


class Deposit(msgspec.Struct, tag=True):
    amount: int


class Withdraw(Request[bool]):
    amount: int


class Balance(Request[int]):
    pass


Command = Deposit | Withdraw | Balance


class OpenAccount(msgspec.Struct):
    owner: str
    mailbox: Receiver[Command]


class Account:
    def __init__(self) -> None:
        self.balance = 0

    async def handle(self, command: Command) -> bool | int | None:
        match command:
            case Deposit(amount):
                self.balance += amount
                return None
            case Withdraw(amount):
                allowed = amount <= self.balance
                self.balance -= amount if allowed else 0
                return allowed
            case Balance():
                return self.balance


async def run_account(request: OpenAccount) -> None:
    """Run the actor. It needs no lock, because it handles one command at a time."""
    account = Account()
    await request.mailbox.serve(account.handle, concurrency=1)
    print(f"the account of {request.owner} is closed with {account.balance}")


async def customer(address: str, owner: str) -> None:
    async with aqueduct.connect(address, OpenAccount, trust=aqueduct.dev_trust()) as connection:
        mine, theirs = aqueduct.channel(Command)
        await connection.entrypoint.send(OpenAccount(owner, theirs))
        connection.entrypoint.finish()
        async with mine:
            await mine.send(Deposit(100))
            for amount in (30, 80):
                allowed = await mine.call(Withdraw(amount))
                print(f"{owner} takes {amount}: {'yes' if allowed else 'no'}")
            print(f"{owner} has", await mine.call(Balance()))
        await connection.wait_closed()  # the bank closes when the last account is


async def main() -> None:
    async with aqueduct.serve("127.0.0.1:0", OpenAccount, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.serve(run_account))
        await customer(server.address, "ann")
        serving.cancel()


asyncio.run(main())
