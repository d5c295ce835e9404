"""A real `holdfast server` that can be killed and started again on its port."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.ports import server_port
from tests.servers.processes import ServerProcess
from tests.support import eventually, holdfast_command, run_holdfast


class HoldfastServer:
    """A server over a store; its process is another one after each start."""

    def __init__(self, directory: Path, store_url: str, *options: str, prefix: Sequence[str] = ()) -> None:
        self.store_url = store_url
        self._prefix = prefix
        self.port = server_port()
        self._options = options
        self._log = directory / f"server-{self.port}.log"
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Returns when it answers."""
        command = holdfast_command("server", "--port", str(self.port), "--url", self.store_url, *self._options)
        self._process = ServerProcess([*self._prefix, *command], self._log)
        eventually(self._answers, 30, "the server answers")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> int | None:
        """SIGTERM; returns what it ended with."""
        if self._process is None:
            return None
        self._process.stop()
        return self._process.exit_code

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        assert self._process is not None
        self._process.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.thaw()

    def heal(self) -> None:
        """Whatever was done to it, it runs and answers now."""
        if self._process is None or not self._process.alive:
            self.start()
        elif self._process.frozen:
            self.thaw()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    def __str__(self) -> str:
        return f"server on port {self.port}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", self.port

    def token(self, *scopes: str) -> str:
        """A new token with these scopes."""
        words = [word for scope in scopes for word in ("--scope", scope)]
        done = run_holdfast("token", "create", *words, url=self.store_url)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def url(self, *scopes: str) -> str:
        """What somebody with these scopes calls it by."""
        return f"http://{self.token(*scopes)}@127.0.0.1:{self.port}"

    def log(self) -> str:
        """All that it has written."""
        return self._log.read_text(errors="replace")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.alive, self.log()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def holdfast_server(
    directory: Path, store_url: str, *options: str, prefix: Sequence[str] = ()
) -> Iterator[HoldfastServer]:
    """A server that answers, its command behind `prefix`; nothing of it outlives the block."""
    server = HoldfastServer(directory, store_url, *options, prefix=prefix)
    try:
        server.start()
        yield server
    except BaseException as error:
        error.add_note(f"log of the server:\n{server.log()[-5_000:]}")
        raise
    finally:
        server.kill()
