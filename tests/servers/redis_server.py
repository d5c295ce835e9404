"""One real Redis or Valkey server on a free loopback port, with a directory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
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
from tests.servers.loopback import HOST, LoopbackServer
from tests.servers.ports import server_port


class RedisServer(LoopbackServer):
    """A server; settings are keyword arguments (`maxmemory="10mb"`), laid over a profile of `flavours`."""

    refuses_root = False

    def __init__(
        self,
        flavour: Flavour = "redis",
        *,
        profile: Settings = FAST,
        password: str | None = None,
        tls: bool = False,
        sentinel: bool = False,
        cluster: bool = False,
        prefix: Sequence[str] = (),
        **settings: Setting,
    ) -> None:
        self.flavour: Flavour = flavour
        self.kind = flavour
        super().__init__(prefix)
        self.password = password
        self.certificates: Certificates | None = None
        self.bus_port = 0
        self._tls = tls
        self._sentinel = sentinel
        self._cluster = cluster
        self._first_settings: dict[str, str] = {}
        self._settings: dict[str, Setting] = {**profile, **setting_names(settings)}

    # -- its life -------------------------------------------------------------------------------------------

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

    # -- what it is -----------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """What a client connects to, password included."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"{'rediss' if self._tls else 'redis'}://{login}{HOST}:{self.port}"

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
    def _config_path(self) -> Path:
        return self.directory / "server.conf"

    def _settle_down(self) -> None:
        """Takes a port and writes the first configuration file."""
        self.port, self.bus_port = server_port(), server_port()
        if self._tls and not self.certificates:
            self.certificates = make_certificates(self.directory)
        self._config_path.write_text(settings_text({**self._place(), **self._login(), **self._settings}))

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
