"""One real Redis or Valkey server on a free loopback port, with a directory of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

import redis
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.flavours import (
    FAST,
    Flavour,
    Setting,
    Settings,
    server_binary,
    setting_names,
    settings_text,
)
from tests.servers.ports import server_port
from tests.servers.processes import ServerProcess, end_at_exit, ended
from tests.support import eventually

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 30.0
_PORT_TAKEN = ("Address already in use", "Failed listening on")
_START_TRIES = 20
_LOG_LINES = 40


class RedisServer:
    """A server that can be stopped, killed, frozen and started again on the same data.

    Settings are keyword arguments (`maxmemory="10mb"`), laid over a profile of `flavours`. Used as a context
    manager, it is started at the beginning and gone at the end, and a failure shows its log.
    """

    def __init__(
        self,
        flavour: Flavour = "redis",
        *,
        profile: Settings = FAST,
        password: str | None = None,
        tls: bool = False,
        sentinel: bool = False,
        cluster: bool = False,
        **settings: Setting,
    ) -> None:
        self.flavour: Flavour = flavour
        self.password = password
        self.certificates: Certificates | None = None
        self.directory = Path(tempfile.mkdtemp(prefix=f"holdfast-{flavour}-"))
        self.port = 0
        self.bus_port = 0
        self._tls = tls
        self._sentinel = sentinel
        self._cluster = cluster
        self._was_ready = False
        self._log_start = 0
        self._first_settings: dict[str, str] = {}
        self._settings: dict[str, Setting] = {**profile, **setting_names(settings)}
        self._process: ServerProcess | None = None
        end_at_exit(self)

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
        self._process = ServerProcess(self._command(), self._log_path)

    def wait_until_ready(self) -> Self:
        """Returns when it answers; at the first start, a port that somebody else took meanwhile is changed."""
        for _ in range(_START_TRIES):
            eventually(
                lambda: not self.alive or self.answers(), START_TIMEOUT_S, f"{self} answers, see {self.directory}"
            )
            if self.alive:
                self._was_ready = True
                return self
            self._make_way()
        raise AssertionError(f"{self} found no port:\n{self.log()}")

    def stop(self) -> None:
        """SIGTERM: it saves what it has to and ends."""
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

    def restart(self, *, kill: bool = False, **settings: Setting) -> Self:
        """Stops or kills it and starts it on the same port and data, with changed settings if some are given."""
        self.kill() if kill else self.stop()
        self.configure(**settings)
        return self.start()

    def configure(self, **settings: Setting) -> None:
        """Changes settings for the next start."""
        if settings:
            # Appended, not written anew: Sentinel and CONFIG REWRITE change the file too, and the last line counts.
            with self._config_path.open("a") as config:
                config.write("\n" + settings_text(setting_names(settings)))

    def use(self, settings: Settings) -> None:
        """Adds settings before the first start, for those that are known late."""
        self._settings |= settings

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
        return f"{self.flavour} on port {self.port}"

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

    @property
    def url(self) -> str:
        """What a client connects to, password included."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"{'rediss' if self._tls else 'redis'}://{login}{HOST}:{self.port}"

    def log(self) -> str:
        """The last lines that it wrote since its last start."""
        if not self._log_path.exists():
            return "(nothing)"
        text = self._log_path.read_bytes()[self._log_start :].decode(errors="replace")
        return "\n".join(text.splitlines()[-_LOG_LINES:])

    # -- talking to it --------------------------------------------------------------------------------------

    def client(self, **options: Any) -> redis.Redis:
        """A new client of ours, to be used in a `with`: short timeouts, and nothing is sent twice."""
        plain: dict[str, Any] = {
            "host": HOST,
            "port": self.port,
            "password": self.password,
            "decode_responses": True,
            "protocol": 2,
            "socket_timeout": 5.0,
            "socket_connect_timeout": 5.0,
            "retry": Retry(NoBackoff(), 0),
        }
        if self.certificates:
            plain |= {"ssl": True, "ssl_ca_certs": str(self.certificates.authority)}
        return redis.Redis(**{**plain, **options})

    def command(self, *words: str | bytes | int) -> Any:
        """The raw answer to one command."""
        with self.client() as client:
            client.response_callbacks.clear()
            return client.execute_command(*words)

    def info(self, section: str = "everything") -> dict[str, str]:
        """The lines of INFO, by name."""
        return fields_of(self.command("INFO", section))

    def answers(self) -> bool:
        """Whether it says PONG, which it does not while it loads its data."""
        try:
            return bool(self.command("PING"))
        except (RedisError, OSError):
            return False

    def flush(self) -> None:
        """Deletes all data."""
        self.command("FLUSHALL")

    def reset(self) -> None:
        """No data, no scripts, and the settings that it had when this was called for the first time."""
        settings = self.settings()
        self._first_settings = self._first_settings or settings
        for name, value in self._first_settings.items():
            if settings[name] != value:
                self.command("CONFIG", "SET", name, value)
        self.command("SCRIPT", "FLUSH")
        self.flush()

    def settings(self) -> dict[str, str]:
        """All settings of the running server, by name."""
        words = self.command("CONFIG", "GET", "*")
        return dict(zip(words[::2], words[1::2], strict=True))

    # -- inside ---------------------------------------------------------------------------------------------

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def _config_path(self) -> Path:
        return self.directory / "server.conf"

    def _running(self) -> ServerProcess:
        assert self._process is not None, f"{self} was never started"
        return self._process

    def _settle_down(self) -> None:
        """Takes a port and writes the first configuration file."""
        self.port, self.bus_port = server_port(), server_port()
        if self._tls and not self.certificates:
            self.certificates = make_certificates(self.directory)
        self._config_path.write_text(settings_text({**self._place(), **self._login(), **self._settings}))

    def _make_way(self) -> None:
        """After an end during the start: tries again if the port was the reason, on another one if it is the first."""
        log = self.log()
        if not any(text in log for text in _PORT_TAKEN):
            raise AssertionError(f"{self} did not start:\n{log}")
        if not self._was_ready:
            self.port = 0
        self.launch()

    def _command(self) -> Sequence[str]:
        return [server_binary(self.flavour), str(self._config_path), *(["--sentinel"] if self._sentinel else [])]

    def _place(self) -> Settings:
        plain: dict[str, Setting] = {"bind": HOST, "dir": str(self.directory), "daemonize": False}
        if self._cluster:
            plain |= {"cluster-enabled": True, "cluster-port": self.bus_port, "cluster-config-file": "nodes.conf"}
        if not self.certificates:
            return {**plain, "port": self.port}
        files = self.certificates
        paths: dict[str, Setting] = {
            "tls-cert-file": str(files.certificate),
            "tls-key-file": str(files.key),
            "tls-ca-cert-file": str(files.authority),
        }
        return {**plain, "port": 0, "tls-port": self.port, "tls-auth-clients": False, **paths}

    def _login(self) -> Settings:
        return {"requirepass": self.password, "masterauth": self.password} if self.password else {}


def fields_of(text: str | bytes) -> dict[str, str]:
    """The `name:value` lines of INFO and CLUSTER INFO."""
    plain = text.decode() if isinstance(text, bytes) else text
    pairs = (line.partition(":") for line in plain.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}
