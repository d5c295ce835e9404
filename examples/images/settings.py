"""The settings of the service, from the environment."""

import os
from dataclasses import dataclass

#: Holdfast extends a claim each third of its lease, and looks for claims that have run out each second.
_BEATS_PER_LEASE = 3
_REAPER_LOOKS_EVERY_S = 1.0


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
    visibility_timeout = _number("VISIBILITY_TIMEOUT", 30, least=1)
    heartbeat_interval = _number("HEARTBEAT_INTERVAL", visibility_timeout / _BEATS_PER_LEASE, least=0.5)
    # At most: a shorter interval than this one is not to be had, and a longer one is kept anyway.
    _number("REAPER_INTERVAL", _REAPER_LOOKS_EVERY_S, least=_REAPER_LOOKS_EVERY_S)
    host, port = os.environ.get("REDIS_HOST", "localhost"), int(_number("REDIS_PORT", 6379, least=1))
    return Settings(
        url=os.environ.get("HOLDFAST_URL") or f"redis://{host}:{port}/0",
        lease_s=max(1, min(visibility_timeout, _BEATS_PER_LEASE * heartbeat_interval)),
        max_attempts=1 + int(_number("MAX_RETRIES", 3, least=0)),
        retry_delay_s=_number("RETRY_DELAY", 1, least=0),
        failure_rate=_number("FAILURE_RATE", 0.3, least=0),
        work_s=_number("WORK_SECONDS", 1, least=0),
        results_url=os.environ.get("RESULTS_URL", "http://localhost:8000/results").rstrip("/"),
    )


def _number(name: str, default: float, least: float) -> float:
    text = os.environ.get(name) or str(default)
    try:
        number = float(text)
    except ValueError:
        raise SystemExit(f"{name}: {text!r} is not a number") from None
    if not least <= number < float("inf"):
        raise SystemExit(f"{name}: {text} must be at least {least:g}")
    return number
