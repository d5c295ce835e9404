"""The model's schedules: replaced by version, the soonest first."""

from __future__ import annotations

from holdfast.core.schedule.record import Schedule


class Schedules:
    """Schedules by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Schedule] = {}

    def get(self, name: str) -> Schedule | None:
        """The schedule of this name."""
        return self._by_name.get(name)

    def version(self, name: str) -> int:
        """The version to name in order to replace it."""
        return self._by_name[name].version if name in self._by_name else 0

    def repeats(self, name: str, new: Schedule | None, expected: int) -> bool:
        """Whether a call asks for what is so already, and was made before as far as can be told."""
        return self.get(name) == new and self.version(name) != expected

    def put(self, name: str, new: Schedule | None, expected: int) -> bool:
        """Whether the version was the expected one, and the effect."""
        if self.version(name) != expected:
            return False
        if new is None:
            self._by_name.pop(name, None)
        else:
            self._by_name[name] = new
        return True

    def listed(self, before_ms: int | None = None) -> list[Schedule]:
        """Those with an occurrence until then, or all, by that time and their names."""
        return [
            schedule
            for schedule in sorted(self._by_name.values(), key=_by_time)
            if before_ms is None or (schedule.next_at_ms is not None and schedule.next_at_ms <= before_ms)
        ]

    def occurrences(self) -> list[int]:
        """When the next occurrence of each is."""
        return [schedule.next_at_ms for schedule in self._by_name.values() if schedule.next_at_ms is not None]


def _by_time(schedule: Schedule) -> tuple[bool, int, str]:
    return schedule.next_at_ms is None, schedule.next_at_ms or 0, schedule.name
