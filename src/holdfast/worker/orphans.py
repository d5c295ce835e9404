"""Orphans: the processes that the tasks of a child have started, and the claims of a child whose supervisor is gone.

A child leads a process group of its own. Before one of its tasks is released, that whole group is dead, so that no two
copies of a task run at once. A child whose supervisor is gone cannot ensure that itself, since it would have to die
first: it passes its claims to a helper process, which outlives the group and then releases them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from holdfast.core import lifecycle
from holdfast.core.task import Claimed
from holdfast.errors import HoldfastError
from holdfast.observe.logs import LogFormat, set_up_logging
from holdfast.stores.contract import MAX_BATCH
from holdfast.stores.open import open_store
from holdfast.worker.backoff import persistently

_log = logging.getLogger("holdfast.worker")

#: How long killed processes may take to go; the kernel needs a moment, and longer for one that is in a system call.
GOING_S: Final = 2.0
_PAUSE_S: Final = 0.005
#: How long the helper tries to reach the store; after that the leases have to run out.
RELEASING_S: Final = 20.0

_PROC = Path("/proc")


def kill_group(group: int) -> bool:
    """SIGKILL to all processes of this group; False if there are none that run."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS: there are only zombies
        return False
    return _any_runs(group)


def _any_runs(group: int) -> bool:
    """Whether one of them is not a zombie; where there is no /proc, a zombie counts as well."""
    if not _PROC.joinpath("self").exists():
        return True
    return any(_runs_in(group, entry) for entry in _PROC.iterdir() if entry.name.isdigit())


def _runs_in(group: int, process: Path) -> bool:
    try:
        state, _, of_group = process.joinpath("stat").read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(of_group) == group and state not in {"Z", "X"}


async def end_group(group: int) -> None:
    """Kills what is left of a child's process group, and waits until it is gone."""
    deadline = time.monotonic() + GOING_S
    while kill_group(group):
        if time.monotonic() >= deadline:
            _log.warning("process group %d: processes that tasks have started do not go although killed", group)
            return
        await asyncio.sleep(_PAUSE_S)


# -- a child without a supervisor ----------------------------------------------------------------------------


class OrphanedClaims(msgspec.Struct, frozen=True):
    """What an orphaned child leaves to its helper."""

    url: str
    group: int
    log_level: str
    log_format: LogFormat
    #: Task ids and tokens.
    claims: list[tuple[str, str]]


def end_orphan(url: str, tasks: Sequence[Claimed], log_level: str, log_format: LogFormat) -> NoReturn:
    """Ends this process and all that its tasks have started; these tasks are released when none of it runs any more."""
    claims = [(task.task_id, task.token) for task in tasks]
    helper = None  # kept: Python complains of a process that is forgotten while it runs
    try:
        if claims:
            helper = _start_helper(OrphanedClaims(url, os.getpgrp(), log_level, log_format, claims))
    except OSError as error:
        _log.warning("%d tasks wait for their leases to run out: no process to release them: %s", len(claims), error)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    del helper
    os._exit(1)


def _start_helper(orphaned: OrphanedClaims) -> subprocess.Popen[bytes]:
    helper = subprocess.Popen(
        [sys.executable, "-m", "holdfast.worker.orphans"], stdin=subprocess.PIPE, start_new_session=True
    )
    if helper.stdin is not None:
        helper.stdin.write(msgspec.msgpack.encode(orphaned))
        helper.stdin.close()
    return helper


async def _release(orphaned: OrphanedClaims) -> None:
    await end_group(orphaned.group)
    store = open_store(orphaned.url)
    changes = [lifecycle.release(task_id, token) for task_id, token in orphaned.claims]
    released = 0
    async with asyncio.timeout(RELEASING_S):
        for first in range(0, len(changes), MAX_BATCH):
            batch = changes[first : first + MAX_BATCH]
            verdicts = await persistently(partial(store.apply, batch), "releasing tasks of a lost worker")
            released += sum(verdict.applied for verdict in verdicts)
        await store.close()
    _log.warning("the worker of process group %d is gone; %d of its tasks were released", orphaned.group, released)


def main() -> None:
    """Reads from its standard input what a child has left, and releases it."""
    orphaned = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=OrphanedClaims)
    set_up_logging(orphaned.log_level, orphaned.log_format)
    try:
        asyncio.run(_release(orphaned))
    except (HoldfastError, TimeoutError) as error:
        _log.warning("%d tasks wait for their leases to run out: %s", len(orphaned.claims), error)


if __name__ == "__main__":
    main()
