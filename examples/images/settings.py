"""The settings of the service, from the environment."""

import os
import re
from dataclasses import dataclass

#: Holdfast extends a claim each third of its lease, and looks for claims that have run out each second.
_BEATS_PER_LEASE = 3
_REAPER_LOOKS_EVERY_S = 1.0
_DAY_S = 86_400
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True)
class Settings:
    url: str
    lease_s: float
    max_attempts: int
    retry_delay_s: float
    failure_rate: float
    work_s: float
    results_url: str


def read_settings() -> Settings:
    """What the environment says; a wrong value ends the program with one line."""
    visibility_timeout = _number("VISIBILITY_TIMEOUT", 30, least=1, most=_DAY_S)
    heartbeat_interval = _number("HEARTBEAT_INTERVAL", visibility_timeout / _BEATS_PER_LEASE, least=0.5, most=_DAY_S)
    # At most: a shorter interval than this one is not to be had, and a longer one is kept anyway.
    _number("REAPER_INTERVAL", _REAPER_LOOKS_EVERY_S, least=_REAPER_LOOKS_EVERY_S, most=_DAY_S)
    return Settings(
        url=os.environ.get("HOLDFAST_URL") or _redis_url(),
        lease_s=max(1, min(visibility_timeout, _BEATS_PER_LEASE * heartbeat_interval)),
        max_attempts=1 + _whole("MAX_RETRIES", 3, least=0, most=999),
        retry_delay_s=_number("RETRY_DELAY", 1, least=0, most=60),
        failure_rate=_number("FAILURE_RATE", 0.3, least=0, most=1),
        work_s=_number("WORK_SECONDS", 1, least=0, most=240),
        results_url=os.environ.get("RESULTS_URL", "http://localhost:8000/results").rstrip("/"),
    )


def _redis_url() -> str:
    """Read only if no other store is named: Kubernetes sets REDIS_PORT by itself, to something else."""
    host = os.environ.get("REDIS_HOST") or "localhost"
    if not _HOST.fullmatch(host):
        raise SystemExit(f"REDIS_HOST: {host!r} must be a name or an address, without a port")
    port = _whole("REDIS_PORT", 6379, least=1, most=65_535)
    return f"redis://[{host}]:{port}/0" if ":" in host else f"redis://{host}:{port}/0"


def _number(name: str, default: float, least: float, most: float) -> float:
    text = os.environ.get(name) or str(default)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise SystemExit(f"{name}: {text!r} must be a number from {least:g} to {most:g}")
    return number


def _whole(name: str, default: int, least: int, most: int) -> int:
    number = _number(name, default, least, most)
    if number != int(number):
        raise SystemExit(f"{name}: {number:g} must be a whole number")
    return int(number)
