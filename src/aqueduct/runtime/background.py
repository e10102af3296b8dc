"""The background event loop of a process, and the base class of the blocking twins that use it."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import inspect
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from aqueduct.errors import AqueductError, ConnectionLost, ForkedConnectionError

T = TypeVar("T")
P = ParamSpec("P")

_EXIT_TIMEOUT = 1.0
"""Seconds that the end of the program waits for each of the `before_stop` functions."""

_exit_functions: list[Callable[[], Coroutine[Any, Any, None]]] = []


def before_stop(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Register a coroutine function that runs on the loop before the program ends."""
    _exit_functions.append(function)


class Background:
    """An event loop in a daemon thread; threads run coroutines on it and wait for the result."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self.forked = False
        self._thread = threading.Thread(target=self._run, name="aqueduct", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop, and return its result.

        Raises `TimeoutError` after ``timeout`` seconds. The coroutine is cancelled then, and if the
        waiting thread is interrupted.
        """
        try:
            self.check()
        except BaseException:
            work.close()
            raise
        if timeout is not None:
            # The loop measures the timeout, so that a result that was ready in time is not lost.
            work = _with_timeout(work, timeout)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop without waiting; cancelling the future cancels it."""
        try:
            self.check()
        except BaseException:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on the loop, and return its result."""

        async def work() -> T:
            return function(*arguments)

        return self.run(work())

    def call_soon(self, function: Callable[..., object]) -> None:
        """Call a function on the loop without waiting; a no-op once the loop is closed."""
        if not self.forked and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function)

    def check(self) -> None:
        """Raise if a call could only wait forever."""
        if self.forked:
            raise ForkedConnectionError(
                "this was made before fork(); make it again in the child process"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the background thread would wait for itself")
        if self.loop.is_closed():
            raise ConnectionLost("the program is ending")

    def stop(self) -> None:
        """Run the `before_stop` functions, then stop the loop."""
        if self.forked or self.loop.is_closed():
            return
        for function in _exit_functions:
            with contextlib.suppress(TimeoutError, AqueductError):
                self.run(function(), _EXIT_TIMEOUT)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_EXIT_TIMEOUT)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()


class _ProcessLoop:
    """The background loop of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.background: Background | None = None


_state = _ProcessLoop()


def background() -> Background:
    """Return the background loop of this process; start it on first use."""
    with _state.lock:
        if _state.background is None or _state.background.loop.is_closed():
            _state.background = Background()
        return _state.background


def _after_fork() -> None:
    if _state.background is not None:
        _state.background.forked = True
    _state.background = None
    _state.lock = threading.Lock()


def _at_exit() -> None:
    if _state.background is not None:
        with contextlib.suppress(KeyboardInterrupt):  # the second Ctrl-C: do not wait for peers
            _state.background.stop()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


async def _with_timeout(work: Coroutine[Any, Any, T], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise TimeoutError(f"not done within {seconds:g} s") from None


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


# -- blocking twins -------------------------------------------------------------------------------


class BlockingTwin(ABC, Generic[T]):
    """Base class of a blocking twin: it calls an asynchronous object on the background loop.

    A subclass takes methods and attributes over with `blocking`, `on_loop` and `Attribute`, so that
    their signatures are written once, and writes only what differs.
    """

    __slots__ = ("_background", "_inner")

    def __init__(self, inner: T, where: Background) -> None:
        self._background = where
        self._inner = inner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._leave(failed=False)
        else:
            with contextlib.suppress(AqueductError):  # the error of the block is the one to raise
                self._leave(failed=True)

    @abstractmethod
    def _leave(self, *, failed: bool) -> None:
        """End the object at the end of its ``with`` block; ``failed`` if the block raised."""


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the twin's version of a coroutine method: it waits for the result."""

    @functools.wraps(method)
    def run(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        result: T = self._background.run(method(self._inner, *arguments, **options))
        return result

    return run


def blocking_function(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the blocking version of a coroutine function."""

    @functools.wraps(function)
    def run(*arguments: P.args, **options: P.kwargs) -> T:
        return background().run(function(*arguments, **options))

    return run


def on_loop(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return the twin's version of a plain method: the loop calls it."""

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        bound = functools.partial(method, self._inner, *arguments, **options)
        result: T = self._background.call(bound)
        return result

    return call


class Attribute(Generic[T]):
    """A read-only attribute of a twin, with the value that the asynchronous object has now."""

    def __init__(self, documentation: str) -> None:
        self.__doc__ = documentation
        self._name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, twin: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, twin: BlockingTwin[Any], owner: type[Any]) -> T: ...
    def __get__(self, twin: BlockingTwin[Any] | None, owner: type[Any]) -> Self | T:
        if twin is None:
            return self
        value: T = getattr(twin._inner, self._name)
        return value

    def __set__(self, twin: BlockingTwin[Any], value: Any) -> None:
        raise AttributeError(f"{self._name} is read-only")


class Settable(Attribute[T]):
    """An attribute of a twin that can be set, on the loop of the asynchronous object."""

    def __set__(self, twin: BlockingTwin[Any], value: T) -> None:
        twin._background.call(lambda: setattr(twin._inner, self._name, value))


Function = TypeVar("Function", bound=Callable[..., Any])


def with_parameters_of(original: Callable[..., Any]) -> Callable[[Function], Function]:
    """Show the parameters of an asynchronous function in `help()` of its blocking version.

    The blocking version takes them as ``**options``, and its overloads declare their types.
    """

    def decorate(function: Function) -> Function:
        returns = inspect.signature(function).return_annotation
        parameters = inspect.signature(original).replace(return_annotation=returns)
        cast("Any", function).__signature__ = parameters
        return function

    return decorate
