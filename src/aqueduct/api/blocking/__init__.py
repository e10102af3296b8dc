"""The blocking twin of the API, for threads; `aqueduct.blocking` exports it.

All channels and connections of a process run on one event loop in a daemon thread. A call submits a
coroutine to that loop and waits for it, which takes some tens of microseconds. `Sender.send_many`,
`Receiver.receive_many` and iterating over a networked `Receiver` submit one coroutine for many
messages. Handles may be used by any thread.

Message types are the same as for asyncio. A received half is of the class that its field declares,
so a thread wraps one that is declared as `aqueduct.Receiver`:
``blocking.Receiver(request.numbers)``. A field of either class takes a blocking half as it is; for
type checkers, one that is declared as `aqueduct.Receiver` takes ``half.asynchronous``. Message
types that only threads use may declare `aqueduct.blocking.Sender` and `Receiver`, which need
neither.

After fork() a child process starts its own loop; objects of the parent raise
`ForkedConnectionError` there.
"""
