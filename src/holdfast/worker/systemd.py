"""Tells systemd how the worker is, where it was started as a service of `Type=notify`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from holdfast.worker.vitals import Vitals

_log = logging.getLogger("holdfast.worker")

_STATUS_EVERY_S = 5.0


class Systemd:
    """Sends what `sd_notify` would; without a socket to send to, nothing."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._status = ""
        self._ready = False

    @classmethod
    def from_environment(cls) -> Systemd:
        """As systemd asks for; taken out of the environment, so that no child speaks for the worker."""
        address = os.environ.pop("NOTIFY_SOCKET", None)
        microseconds, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        watched = microseconds.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1_000_000 if watched else None)

    def ready(self) -> None:
        """The worker is at work; only the first time is of interest."""
        if not self._ready:
            self._ready = True
            self._send("READY=1")

    def stopping(self) -> None:
        """The worker is about to end."""
        self._send("STOPPING=1\nSTATUS=draining")

    async def keep_informed(self, vitals: Vitals) -> None:
        """Goes on until cancelled: how it is, and while it is well, that the watchdog need not bark."""
        while self._address is not None:
            if self._watchdog_s and not vitals.sick():
                self._send("WATCHDOG=1")
            if (status := vitals.status()) != self._status:
                self._status = status
                self._send(f"STATUS={status}")
            await asyncio.sleep(min(_STATUS_EVERY_S, (self._watchdog_s or _STATUS_EVERY_S * 2) / 2))

    def _send(self, text: str) -> None:
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(text.encode(), address)
        except OSError as error:
            _log.debug("systemd was not told %r: %s", text, error)
