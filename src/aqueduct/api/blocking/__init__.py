"""The blocking twin of the API, for threads; `aqueduct.blocking` exports it.

All channels and connections of a process run on one event loop in a daemon thread. A call submits a
coroutine to that loop and waits for it, which takes some tens of microseconds. `Sender.send_many`,
`Receiver.receive_many` and iterating over a networked `Receiver` submit one coroutine for many
messages. Handles may be used by any thread.

Message types for threads declare their channels as `aqueduct.blocking.Sender` and `Receiver`. The
halves in a message type that was declared for asynchronous code have to be wrapped:
``blocking.Receiver(request.numbers)``.

After fork() a child process starts its own loop; objects of the parent raise
`ForkedConnectionError` there.
"""
