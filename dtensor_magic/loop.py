"""The driver's asyncio loop, in one thread of the notebook kernel's process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class DriverLoop:
    """An event loop in a daemon thread. All of the driver's sockets live on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dtensor-magic", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start `coroutine` on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `coroutine` on the loop and return its result; an interrupt here cancels it there.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which the coroutine is cancelled and ``TimeoutError`` is raised.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the driver's own loop would never return")
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def finish(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` to its end, also when an interrupt comes meanwhile, which is raised then.

        For what must not be left half done. The coroutine must end by itself within bounds.
        """
        future = self.submit(coroutine)
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                result = future.result()
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return result

    def in_thread(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run `function` in a daemon thread of its own, where it may block and use :meth:`call`.

        Not in an executor: the end of the process would wait for its threads.
        """
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - whoever waits has it
                done.set_exception(error)

        threading.Thread(target=run, name="dtensor-asked", daemon=True).start()
        return asyncio.wrap_future(done)

    async def on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await `coroutine` on this loop from a coroutine on any loop."""
        if asyncio.get_running_loop() is self.loop:
            return await coroutine
        return await asyncio.wrap_future(self.submit(coroutine))


_driver: DriverLoop | None = None
_lock = threading.Lock()


def driver() -> DriverLoop:
    """Return this process's driver loop, started on first use."""
    global _driver  # noqa: PLW0603 - one per process is the point
    with _lock:
        if _driver is None:
            _driver = DriverLoop()
        return _driver
