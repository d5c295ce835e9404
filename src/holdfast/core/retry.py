"""How often and when a failed task runs again, and the policy that a task carries of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from holdfast.core.durations import LONGEST_MS, Duration, duration_ms
from holdfast.core.habits import only_known_options
from holdfast.core.names import MAX_ERROR_NAME_CHARS, is_storable
from holdfast.errors import BadOption

#: How long a task is kept after it succeeded, failed or was cancelled, unless its app says otherwise.
RESULT_TTL_MS = 86_400_000
#: How long a dead letter is kept, unless its app says otherwise.
DEAD_LETTER_TTL_MS = 14 * 86_400_000


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
    #: How long the task is kept after it succeeded, failed or was cancelled.
    result_ttl_ms: int = RESULT_TTL_MS
    #: How long it is kept as a dead letter.
    dead_letter_ttl_ms: int = DEAD_LETTER_TTL_MS

    def delay_ms(self, failed_attempts: int, random_unit: float) -> int:
        """How long to wait after this many failed attempts: min(base * 2^k, cap), less the jitter.

        k counts from 0, so that the first wait is `base`. `random_unit` is drawn from [0, 1). Whatever numbers others
        wrote into the store, the answer is one that every store can add to its time.
        """
        doublings = min(max(failed_attempts - 1, 0), 62)
        longest = max(min(self.base_ms << doublings, self.cap_ms, LONGEST_MS), 0)
        jitter = min(max(self.jitter, 0.0), 1.0)
        return round(longest * (1 - jitter * random_unit))

    def worth_retrying(self, error_names: Sequence[str]) -> bool:
        """Whether an error whose class and base classes have these names may be tried again."""
        names = set(error_names)
        if names.intersection(self.give_up_on):
            return False
        return not self.retry_on or bool(names.intersection(self.retry_on))


DEFAULT_POLICY = RunPolicy()


# -- retry ---------------------------------------------------------------------------------------------------


MAX_ATTEMPTS = 1_000
#: Of exception classes in `give_up_on` and in `retry_on`: they travel with every task.
MAX_NAMES = 100


@dataclass(frozen=True, slots=True)
class Retry:
    """How a task type is retried, as people declare it.

    `give_up_on` and `retry_on` take exception classes or their names (`"builtins.ValueError"`).
    """

    max_attempts: int = 5
    base: Duration = "30s"
    cap: Duration = "30m"
    jitter: float = 0.5
    give_up_on: tuple[type[BaseException] | str, ...] = ()
    retry_on: tuple[type[BaseException] | str, ...] = ()
    dead_letter: bool = True

    def __post_init__(self) -> None:
        self.policy()

    def policy(self, before: RunPolicy = DEFAULT_POLICY) -> RunPolicy:
        """The same in the form that is recorded with a task; what is not about retries stays as it was `before`."""
        whole = isinstance(self.max_attempts, int) and not isinstance(self.max_attempts, bool)
        if not whole or not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise BadOption(f"retry: max_attempts {self.max_attempts!r} must be from 1 to {MAX_ATTEMPTS}")
        if not isinstance(self.jitter, (int, float)) or not 0 <= self.jitter <= 1:
            raise BadOption(f"retry: jitter {self.jitter!r} must be between 0 and 1")
        return replace(
            before,
            max_attempts=self.max_attempts,
            base_ms=duration_ms(self.base, "retry: base"),
            cap_ms=duration_ms(self.cap, "retry: cap"),
            jitter=float(self.jitter),
            give_up_on=_names("give_up_on", self.give_up_on),
            retry_on=_names("retry_on", self.retry_on),
            dead_letter=bool(self.dead_letter),
        )


Retry.__init__ = only_known_options("Retry()")(Retry.__init__)  # type: ignore[method-assign]


def error_name(error: type[BaseException]) -> str:
    """The name by which an exception class is recorded and compared."""
    return f"{error.__module__}.{error.__qualname__}"


def error_names(error: BaseException) -> tuple[str, ...]:
    """The names of an exception's class and of all its base classes."""
    return tuple(error_name(cls) for cls in type(error).__mro__ if issubclass(cls, BaseException))


def _names(option: str, classes: Sequence[type[BaseException] | str]) -> tuple[str, ...]:
    if isinstance(classes, (str, type)):
        raise BadOption(f"retry: {option} takes a tuple, as in {option}=(ValueError,)")
    if len(classes) > MAX_NAMES:
        raise BadOption(f"retry: {option} names {len(classes)} classes, the limit is {MAX_NAMES}; name a base class")
    names = tuple(_name(option, cls) for cls in classes)
    for name in names:
        if not is_storable(name, MAX_ERROR_NAME_CHARS):
            raise BadOption(
                f"retry: {option}: {name[:80]!r} cannot be stored: at most {MAX_ERROR_NAME_CHARS} characters, without "
                "NUL and halves of surrogate pairs"
            )
    return names


def _name(option: str, cls: type[BaseException] | str) -> str:
    if isinstance(cls, str):
        return cls if "." in cls else f"builtins.{cls}"
    if isinstance(cls, type) and issubclass(cls, BaseException):
        return error_name(cls)
    raise BadOption(f"retry: {option} takes exception classes, not {cls!r}")
