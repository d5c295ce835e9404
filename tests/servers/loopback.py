"""What servers of all kinds have in common: a loopback port, a directory, a process, a log."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from tests.servers.ports import server_port
from tests.servers.processes import ServerProcess, end_at_exit, ended, own_directory, server_user
from tests.support import eventually

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60.0
_PORT_TAKEN: Final = ("Address already in use", "address already in use", "Failed listening on")
_LOG_LINES = 40


class LoopbackServer(ABC):
    """A server that can be stopped, killed, frozen and started again on the same port and data.

    As a context manager, it is started at the beginning and gone at the end, and a failure shows its log.
    """

    kind: str
    #: Whether it has to run as another user then.
    refuses_root: ClassVar[bool] = True
    #: What its log says when it did not start for a reason that passes.
    passing_reasons: ClassVar[tuple[str, ...]] = ()
    process_type: ClassVar[type[ServerProcess]] = ServerProcess

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        #: The words before its command.
        self._prefix = prefix
        self._user = server_user() if self.refuses_root else None
        self.directory = own_directory(f"holdfast-{self.kind}-", self._user)
        self.port = 0
        self._was_ready = False
        self._log_start = 0
        self._process: ServerProcess | None = None
        end_at_exit(self)

    # -- what differs ---------------------------------------------------------------------------------------

    @abstractmethod
    def answers(self) -> bool:
        """Whether it does what clients expect of it."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """What to run; called before each start, with the port chosen and the directory there."""

    # -- its life -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts it, on the data that it had; returns when it answers."""
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        """Starts it and does not wait; the first start chooses the port."""
        assert not self.alive, f"{self} runs already"
        if not self.port:
            self._settle_down()
        self._log_start = self._log_path.stat().st_size if self._log_path.exists() else 0
        self._process = self.process_type(
            [str(word) for word in (*self._prefix, *self._command())], self._log_path, self._user
        )

    def wait_until_ready(self, timeout: float = START_TIMEOUT_S) -> Self:
        """Returns when it answers; at the first start, a port that somebody else took meanwhile is changed."""
        eventually(self._came_up, timeout, f"{self} answers, see {self.directory}")
        self._was_ready = True
        return self

    def stop(self) -> None:
        """SIGTERM."""
        if self._process:
            self._process.stop()

    def kill(self) -> None:
        """SIGKILL, as the end of its machine would be, but for the page cache."""
        if self._process:
            self._process.kill()

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        self._running().freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        self._running().thaw()

    def heal(self) -> Self:
        """Whatever a test did to it, it runs and answers now."""
        if self._process and self._process.frozen:
            self._process.thaw()
        return self.wait_until_ready() if self.alive else self.start()

    def end(self) -> None:
        """Nothing of it is left, neither process nor files."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        ended(self)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.end()
            raise

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"log of {self}:\n{self.log()}")
        self.end()

    # -- what it is -----------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.kind} on port {self.port}"

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.alive

    @property
    def running(self) -> bool:
        """Whether its process runs and is not frozen; others need not be asked, they would not answer."""
        return self._process is not None and self._process.alive and not self._process.frozen

    @property
    def pid(self) -> int:
        """Its process."""
        return self._running().pid

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self.port

    def log(self) -> str:
        """The last lines that it wrote since its last start."""
        if not self._log_path.exists():
            return "(nothing)"
        text = self._log_path.read_bytes()[self._log_start :].decode(errors="replace")
        return "\n".join(text.splitlines()[-_LOG_LINES:])

    # -- inside ---------------------------------------------------------------------------------------------

    def _settle_down(self) -> None:
        """Takes a port."""
        self.port = server_port()

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def _running(self) -> ServerProcess:
        assert self._process is not None, f"{self} was never started"
        return self._process

    def _came_up(self) -> bool:
        if self.alive:
            return self.answers()
        log = self.log()
        port_is_taken = any(text in log for text in _PORT_TAKEN)
        if not port_is_taken and not any(text in log for text in self.passing_reasons):
            raise AssertionError(f"{self} did not start:\n{log}")
        if port_is_taken and not self._was_ready:
            self.port = 0
        self.launch()
        return False
