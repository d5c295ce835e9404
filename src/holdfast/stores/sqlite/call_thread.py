"""A thread that takes calls in groups: all that wait are run together, and each is answered where it was made."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from holdfast.errors import StoreUnavailable
from holdfast.runtime.forks import free, note_acquired
from holdfast.runtime.threads import start_thread
from holdfast.stores.sqlite.ballast import Use
from holdfast.stores.sqlite.transaction import Transaction

#: One group of operations: more would only make the first of them wait.
_MAX_GROUP: Final = 256
_CLOSED: Final = "the store is closed"


class PendingCall:
    """An operation on its way through a thread, and what became of it."""

    __slots__ = ("answer", "error", "operation", "use")

    def __init__(self, operation: Callable[[Transaction], Any], use: Use) -> None:
        self.operation = operation
        self.use = use
        self.answer: Any = None
        self.error: BaseException | None = None


class AsyncCall(PendingCall):
    """A call that is answered on the event loop of its caller."""

    __slots__ = ("future", "loop")

    def __init__(self, operation: Callable[[Transaction], Any], use: Use) -> None:
        super().__init__(operation, use)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


class SyncCall(PendingCall):
    """A call whose caller waits in its own thread."""

    __slots__ = ("answered",)

    def __init__(self, operation: Callable[[Transaction], Any], use: Use) -> None:
        super().__init__(operation, use)
        #: Held until it is answered.
        self.answered = threading.Lock()
        self.answered.acquire()


class Turns:
    """Who may use a connection: one thread at a time, and none while a fork is under way."""

    def __init__(self, disconnect: Callable[[], None]) -> None:
        #: Closes the connection.
        self._disconnect = disconnect
        #: The owner of the second lock may use the connection. The next one waits for it with the first.
        self._next, self._in_use = threading.RLock(), threading.RLock()
        #: One for each fork under way (a signal handler may fork inside of another): which locks it has, in this order.
        self._pauses: list[list[bool]] = []

    def start_anew(self) -> None:
        """In a forked child: no thread of the parent has a turn."""
        for lock in (self._next, self._in_use):
            free(lock)
        self._pauses.clear()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """The connection is used by this thread alone, and no fork comes in between."""
        with self._next:
            self._in_use.acquire()
        try:
            yield
        finally:
            self._in_use.release()

    def take(self, seconds: float = 0.0) -> bool:
        """A turn, if it comes within this time; a signal handler gets one inside of that of its own thread."""
        if not self._next.acquire(timeout=seconds):
            return False
        try:
            return self._in_use.acquire(timeout=seconds)
        finally:
            self._next.release()

    def end(self) -> None:
        """The end of a turn that was taken."""
        self._in_use.release()

    def pause(self, deadline: float) -> None:
        """Closes the connection between two turns, and lets no other begin until `resume`."""
        held: list[bool] = []
        self._pauses.append(held)
        note_acquired(held, self._next, deadline - time.monotonic())
        if all(held):
            note_acquired(held, self._in_use, deadline - time.monotonic())
        if held == [True, True]:
            self._disconnect()

    def resume(self) -> None:
        """Lets the next turn begin; does nothing if `pause` was not called, since what came before it raised."""
        held = self._pauses.pop() if self._pauses else []
        for lock, is_held in zip((self._next, self._in_use), held, strict=False):
            if is_held:
                lock.release()


class CallThread(Turns):
    """A thread that takes calls in groups and answers each where it came from."""

    def __init__(
        self, name: str, run_group: Callable[[Sequence[PendingCall]], None], disconnect: Callable[[], None]
    ) -> None:
        super().__init__(disconnect)
        self._name = name
        self._run_group = run_group
        self._closed = False
        self.start_anew()

    def start_anew(self) -> None:
        """Without a thread, and without the calls that one of the parent process is to answer."""
        super().start_anew()
        self._calls: queue.SimpleQueue[PendingCall | None] = queue.SimpleQueue()
        #: Whether a thread was started. A signal handler that comes in between starts another one, which ends at once:
        #: the first that has `_serving` serves.
        self._started = False
        self._serving = threading.Lock()
        self._ended = self._gone = False

    async def call(self, call: AsyncCall) -> Any:
        """The answer to a call, once its group has been run."""
        self._hand_in(call)
        # A caller that is cancelled while its operation may be under way must not leave it half known:
        # the operation goes on, and its ids make it safe to repeat.
        return await call.future

    def call_now(self, call: SyncCall) -> Any:
        """As `call`, for a caller that waits in this thread."""
        self._hand_in(call)
        call.answered.acquire()
        if call.error is not None:
            raise call.error
        return call.answer

    def _hand_in(self, call: PendingCall) -> None:
        if self._closed:
            raise StoreUnavailable(_CLOSED)
        self._calls.put(call)
        self._start_once()
        if self._ended:
            self._refuse_rest()

    async def close(self) -> None:
        """Finishes the calls that were made before, and ends the thread."""
        self._closed = True
        self._calls.put(None)
        # Not to_thread(join): that would start a thread, which a program that is about to exit may not do.
        while self._started and not self._gone:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def _start_once(self) -> None:
        if not self._started:
            start_thread(self._serve, self._name)
            self._started = True

    def _serve(self) -> None:
        if self._serving.acquire(blocking=False):
            try:
                self._serve_to_the_end()
            finally:
                self._gone = True

    def _serve_to_the_end(self) -> None:
        more = True
        while more and (first := self._calls.get()) is not None:
            with self.turn():
                calls, more = self._gather(first)
                try:
                    self._run_group(calls)
                except BaseException as error:  # noqa: BLE001  # Answered to every caller: a silent thread is a hang.
                    for call in calls:
                        call.error = call.error or error
            _answer(calls)
        with self.turn():
            self._disconnect()
        self._ended = True
        self._refuse_rest()

    def _gather(self, first: PendingCall) -> tuple[list[PendingCall], bool]:
        """The calls that wait, and whether any may come after them."""
        calls = [first]
        with contextlib.suppress(queue.Empty):
            while len(calls) < _MAX_GROUP:
                call = self._calls.get_nowait()
                if call is None:
                    return calls, False
                calls.append(call)
        return calls, True

    def _refuse_rest(self) -> None:
        """Answers calls that came while the store was closed: no other code would."""
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call.error = StoreUnavailable(_CLOSED)
                    _answer([call])


def _answer(calls: Sequence[PendingCall]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[AsyncCall]] = {}
    for call in calls:
        if isinstance(call, AsyncCall):
            by_loop.setdefault(call.loop, []).append(call)
        elif isinstance(call, SyncCall):
            call.answered.release()
    for loop, answered in by_loop.items():
        with contextlib.suppress(RuntimeError):  # That loop is closed: no caller waits there any more.
            loop.call_soon_threadsafe(_deliver, answered)


def _deliver(calls: Sequence[AsyncCall]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.answer)
