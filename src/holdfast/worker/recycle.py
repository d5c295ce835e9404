"""When a child is recycled: the tasks that it has run, the memory that it uses, a kill for lack of memory."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from holdfast.core.names import format_bytes
from holdfast.worker.options import WorkerOptions

_PROC = Path("/proc")
#: How many samples, one a second, a kill counts as recent: a large process takes time to go.
_SAMPLES = 10

_log = logging.getLogger("holdfast.worker")

#: From this share of its memory limit on, a child asks for a successor: its own tasks still need room to finish.
ASKS_AT: Final = 0.8


def resident_bytes(pid: int) -> int:
    """What this process has in memory; 0 if it is gone, or where there is no /proc."""
    try:
        pages = (_PROC / str(pid) / "statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class OomKills:
    """The kernel's counter of processes that it killed for memory, nearest to this process: its cgroup's, or all."""

    def __init__(self, counters: Sequence[Path]) -> None:
        self._counter = next((path for path in counters if read_counter(path) is not None), None)
        self._samples: deque[int] = deque([self._count()], _SAMPLES)

    @classmethod
    def of(cls, pid: int) -> OomKills:
        """Those among which a kill of this process would be."""
        return cls([*cgroup_counters(pid), _PROC / "vmstat"])

    def sample(self) -> None:
        """To be called once a second, so that only the latest kills count."""
        self._samples.append(self._count())

    def lately(self) -> bool:
        """Whether there was one in the last seconds."""
        return self._count() > self._samples[0]

    def _count(self) -> int:
        return (read_counter(self._counter) if self._counter else 0) or 0


def died_of_memory(memory_bytes: int) -> str:
    """How such a process ended, in words."""
    used = f" (it used {format_bytes(memory_bytes)} when last seen)" if memory_bytes else ""
    return f"was killed by the kernel because memory ran out{used}"


def read_counter(path: Path) -> int | None:
    """The number behind `oom_kill` in a file of `name number` lines; None if it does not have one."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def cgroup_counters(pid: int) -> Iterator[Path]:
    """Where the cgroup of this process would count such kills, as of version 2 and of version 1."""
    try:
        groups = (_PROC / str(pid) / "cgroup").read_text().splitlines()
        mounts = [line.split() for line in (_PROC / "self" / "mountinfo").read_text().splitlines()]
    except OSError:
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            yield from _files(mounts, "cgroup2", None, path, "memory.events")
        elif "memory" in controllers.split(","):
            yield from _files(mounts, "cgroup", "memory", path, "memory.oom_control")


def _files(mounts: list[list[str]], kind: str, option: str | None, path: str, name: str) -> Iterator[Path]:
    for fields in mounts:
        root, mount_point, (mounted, _, options) = fields[3], Path(fields[4]), fields[-3:]
        if mounted == kind and (option is None or option in options.split(",")):
            # In a container the mounted part may begin at the group itself, whose path is told from the host's root.
            inside = path.removeprefix(root) if root != "/" else path
            yield mount_point / inside.strip("/") / name
            yield mount_point / name


# -- when a child is recycled ----------------------------------------------------------------------------------


class RecycleLimits:
    """Whether this process has run its maximum of tasks, or uses its maximum of memory."""

    def __init__(
        self,
        max_tasks: int | None,
        max_memory: int | None,
        memory_bytes: Callable[[], int] = lambda: resident_bytes(os.getpid()),
    ) -> None:
        self._max_tasks = max_tasks
        self._max_memory = max_memory
        self._memory_bytes = memory_bytes
        self._ended = 0
        self._asked = False
        self._warned = False
        #: Nothing more may be taken on.
        self.full = False

    @classmethod
    def by(cls, options: WorkerOptions) -> RecycleLimits | None:
        """What these options ask for; None if it is nothing."""
        if options.max_tasks is None and options.max_memory is None:
            return None
        return cls(options.max_tasks, options.max_memory)

    def check(self, ended: int) -> str | None:
        """Counts tasks that have ended; gives the reason for a successor, the first time that there is one."""
        self._ended += ended
        reason = self._reason()
        if reason is None or self._asked:
            return None
        self._asked = True
        return reason

    def _reason(self) -> str | None:
        if self._max_memory is not None and (used := self._memory_bytes()) >= ASKS_AT * self._max_memory:
            return self._heavy(used, self._max_memory)
        if self._max_tasks is not None and self._ended >= self._max_tasks:
            return f"has run {self._ended:,} tasks"
        return None

    def _heavy(self, used: int, limit: int) -> str | None:
        """A child that is heavy before its first task would only be followed by another one like it."""
        if not self._ended:
            if not self._warned:
                _log.warning(
                    "max-memory: the app uses %s of %s before its first task", format_bytes(used), format_bytes(limit)
                )
            self._warned = True
            return None
        self.full = used >= limit
        return f"uses {format_bytes(used)} of memory"
