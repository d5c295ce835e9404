"""Errors over HTTP: one JSON form for all of them (RFC 9457), converted from our exceptions and back."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast import errors
from holdfast.core.task import State
from holdfast.errors import HoldfastError

MEDIA_TYPE: Final = "application/problem+json"
_URN: Final = "urn:holdfast:problem:"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every error."""

    #: Which kind of problem: a name that does not change, for programs.
    type: str
    title: str
    status: int
    #: What was wrong with this call, in one line.
    detail: str = ""
    #: Of a refused change: "stale_claim", "wrong_state", "not_expired" or "stale_epoch".
    reason: str | None = None
    #: Of a refused change: the state of the task.
    state: State | None = None
    #: Seconds after which the same call may succeed.
    retry_after: int | None = None


class Kind(msgspec.Struct, frozen=True):
    """One kind of problem; an error class has one, and those that are only of HTTP have none."""

    name: str
    status: int
    title: str
    error: type[HoldfastError] | None = None
    retry_after: int | None = None

    @property
    def type(self) -> str:
        """Its name in a problem."""
        return f"{_URN}{self.name}"

    def problem(self, detail: str = "", *, reason: str | None = None, state: State | None = None) -> Problem:
        """The problem of one call."""
        return Problem(
            type=self.type,
            title=self.title,
            status=self.status,
            detail=detail,
            reason=reason,
            state=state,
            retry_after=self.retry_after,
        )


# -- only of HTTP ------------------------------------------------------------------------------------------------

NO_HTTP: Final = Kind("no-http", 400, "Not a valid HTTP request")
BAD_JSON: Final = Kind("bad-json", 400, "The body is not JSON in UTF-8")
UNAUTHORIZED: Final = Kind("unauthorized", 401, "A token is needed")
FORBIDDEN: Final = Kind("forbidden", 403, "This token may not do that", errors.NotAllowed)
FOREIGN_ORIGIN: Final = Kind("foreign-origin", 403, "Pages of other sites may not do that")
NOT_FOUND: Final = Kind("not-found", 404, "No such address")
METHOD_NOT_ALLOWED: Final = Kind("method-not-allowed", 405, "Method not allowed at this address")
TOO_SLOW: Final = Kind("too-slow", 408, "The request did not arrive in time")
STALE_CLAIM: Final = Kind("stale-claim", 409, "This claim is not the current one", errors.ClaimLost)
BODY_TOO_LARGE: Final = Kind("body-too-large", 413, "The body is over the size limit")
MEDIA_TYPE_NOT_SUPPORTED: Final = Kind("media-type", 415, "Only JSON bodies are accepted")
WRONG_HOST: Final = Kind("wrong-host", 421, "Unrecognized Host header")
HEAD_TOO_LARGE: Final = Kind("head-too-large", 431, "The headers are over the size limit")
INVALID: Final = Kind("invalid", 422, "Invalid request")
TOO_MANY_REQUESTS: Final = Kind("too-many-requests", 429, "Too many requests", retry_after=1)
INTERNAL: Final = Kind("internal", 500, "Internal error; see the log of the server")
BUSY: Final = Kind("busy", 503, "The server is busy with large requests", errors.StoreUnavailable, 1)
SHUTTING_DOWN: Final = Kind("shutting-down", 503, "The server is shutting down", errors.StoreUnavailable, 1)

# -- of error classes --------------------------------------------------------------------------------------------

UNKNOWN_TASK: Final = Kind("unknown-task", 404, "No such task", errors.UnknownTask)
TOO_DEEP: Final = Kind("payload-too-deep", 413, "Arguments or result nested too deeply", errors.PayloadTooDeep)
REQUEST_CONFLICT: Final = Kind("request-conflict", 409, "The id stands for another task", errors.RequestConflict)
REFUSED: Final = Kind("refused", 409, "Its state does not allow that", errors.Refused)
STORE_UNAVAILABLE: Final = Kind("store-unavailable", 503, "The store does not answer", errors.StoreUnavailable, 1)
UNKNOWN_SCHEDULE: Final = Kind("unknown-schedule", 404, "No such schedule", errors.UnknownSchedule)
UNKNOWN_WORKER: Final = Kind("unknown-worker", 404, "No such worker", errors.UnknownWorker)
STORE_FULL: Final = Kind("store-full", 507, "No room for new tasks", errors.StoreFull, 10)
STALE_EPOCH: Final = Kind("stale-epoch", 409, "Another process is the leader", errors.StaleEpoch)
STALE_MAP: Final = Kind("stale-map", 409, "Routed by an old partition map", errors.StaleMap, 1)

KINDS: Final = (
    UNKNOWN_TASK,
    UNKNOWN_SCHEDULE,
    UNKNOWN_WORKER,
    Kind("unknown-token", 404, "No such token", errors.UnknownToken),
    Kind("not-genuine", 422, "Not signed or encrypted as asked for", errors.NotGenuine),
    Kind("unknown-key", 422, "Signed or encrypted with another key", errors.UnknownKey),
    REQUEST_CONFLICT,
    REFUSED,
    Kind("payload-too-large", 413, "Arguments or result over the size limit", errors.PayloadTooLarge),
    TOO_DEEP,
    Kind("bad-duration", 422, "Not a duration", errors.BadDuration),
    Kind("bad-name", 422, "Not a name", errors.BadName),
    Kind("bad-option", 422, "An option out of its range", errors.BadOption),
    Kind("bad-url", 422, "Not the URL of a store", errors.BadUrl),
    Kind("bad-arguments", 422, "Arguments that do not fit", errors.BadArguments),
    Kind("bad-result", 422, "A result that does not fit", errors.BadResult),
    Kind("unknown-task-type", 422, "No such task type", errors.UnknownTaskType),
    Kind("bad-schedule", 422, "Not a schedule", errors.BadSchedule),
    Kind("usage", 422, "The call is wrong", errors.UsageError),
    Kind("durability-unknown", 503, "Enqueued, not yet confirmed", errors.DurabilityUnknown, 1),
    STORE_UNAVAILABLE,
    STORE_FULL,
    Kind("store-too-new", 500, "The store was made by a newer version", errors.StoreTooNew),
    Kind("store-corrupt", 500, "The data of the store is damaged", errors.StoreCorrupt),
    STALE_EPOCH,
    STALE_MAP,
    Kind("store", 500, "The store could not do it", errors.StoreError),
    STALE_CLAIM,
    NO_HTTP,
    BAD_JSON,
    UNAUTHORIZED,
    FORBIDDEN,
    FOREIGN_ORIGIN,
    WRONG_HOST,
    HEAD_TOO_LARGE,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    TOO_SLOW,
    BODY_TOO_LARGE,
    MEDIA_TYPE_NOT_SUPPORTED,
    INVALID,
    TOO_MANY_REQUESTS,
    INTERNAL,
    BUSY,
    SHUTTING_DOWN,
)

_BY_TYPE: Final = {kind.type: kind for kind in KINDS}
#: Of several kinds with one class, the first.
_BY_ERROR: Final = {kind.error: kind for kind in reversed(KINDS) if kind.error is not None}
_decoder = msgspec.json.Decoder(Problem)
_encoder = msgspec.json.Encoder()


def kind_of(error: HoldfastError) -> Kind:
    """The kind of problem that an error is."""
    return next((_BY_ERROR[cls] for cls in type(error).__mro__ if cls in _BY_ERROR), INTERNAL)


def problem_of(error: HoldfastError) -> Problem:
    """The problem that an error is."""
    return kind_of(error).problem(str(error))


def write_problem(problem: Problem) -> bytes:
    """The body."""
    return _encoder.encode(problem)


def error_of(status: int, body: bytes) -> HoldfastError:
    """The error behind an answer with this status; one that is not ours is that of something in between."""
    try:
        problem = _decoder.decode(body)
    except msgspec.DecodeError:
        return _by_status(status, f"the server answered with status {status}")
    kind = _BY_TYPE.get(problem.type)
    text = problem.detail or problem.title
    return kind.error(text) if kind is not None and kind.error is not None else _by_status(status, text)


def _by_status(status: int, text: str) -> HoldfastError:
    away = status in {408, 429} or (status >= 500 and status != 501)
    return errors.StoreUnavailable(text) if away else errors.StoreError(text)
