"""What a task is allowed: so many attempts, so much time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class RunPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often, how long and until when a task may run, as its envelope carries it: numbers and names only."""

    max_attempts: int = 5
    base_ms: int = 30_000
    cap_ms: int = 1_800_000
    #: The share of the delay that is drawn at random, so that failures do not come back in step.
    jitter: float = 0.5
    #: Names of exception classes that end the task at once; subclasses count.
    give_up_on: tuple[str, ...] = ()
    #: If not empty, only these (and their subclasses) are worth a retry.
    retry_on: tuple[str, ...] = ()
    #: Out of attempts: kept as a dead letter, or just `failed`.
    dead_letter: bool = True
    #: After this long the run is asked to end, and may clean up; None for never.
    timeout_ms: int | None = None
    #: After this long its process is killed; None for never.
    hard_timeout_ms: int | None = None
    #: A task whose first run has not begun this long after its creation is cancelled; None for never.
    expires_ms: int | None = None

    def delay_ms(self, failed_attempts: int, random_unit: float) -> int:
        """How long to wait after this many failed attempts: min(base * 2^k, cap), less the jitter.

        k counts from 0, so that the first wait is `base`. `random_unit` is drawn from [0, 1).
        """
        doublings = min(max(failed_attempts - 1, 0), 62)
        longest = min(self.base_ms << doublings, self.cap_ms)
        return round(longest * (1 - self.jitter * random_unit))

    def worth_retrying(self, error_names: Sequence[str]) -> bool:
        """Whether an error whose class and base classes have these names may be tried again."""
        names = set(error_names)
        if names.intersection(self.give_up_on):
            return False
        return not self.retry_on or bool(names.intersection(self.retry_on))


DEFAULT_POLICY = RunPolicy()
