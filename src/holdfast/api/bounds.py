"""What the document says beyond the types: bounds that the routes check themselves, and fields that exclude each other.

The types of the store's records are those of our own code, which needs no telling; what api/checks.py refuses of them
is said here. Where a route answers to anything, such as the id of no task, there is no bound; nor where an answer has
the same record and what is in it may have come by another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.api.checks import LAST_MS
from holdfast.core.durations import LONGEST_MS
from holdfast.core.priority import HIGHEST, LOWEST, STRICT_STEP_MS
from holdfast.core.retry import MAX_ATTEMPTS
from holdfast.stores.contract import MAX_BATCH
from holdfast.wire.limits import (
    LARGEST_COUNT,
    LARGEST_EXACT,
    LARGEST_MEMORY_BYTES,
    LONGEST_LEASE_MS,
    LONGEST_TTL_MS,
    MAX_ERROR_TYPES,
    MAX_QUEUES,
    MAX_SCHEDULES,
)
from holdfast.wire.patterns import ID, NAME, TASK_ID, VISIBLE

_BASE64: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_NAME: Final = {"pattern": NAME}
_VISIBLE: Final = {"pattern": VISIBLE}
_TASK_ID: Final = {"pattern": TASK_ID}
_ID: Final = {"pattern": ID}
_PRIORITY: Final = {"minimum": LOWEST, "maximum": HIGHEST}
_MS: Final = {"minimum": 0, "maximum": LONGEST_MS}
_BATCH: Final = {"minimum": 0, "maximum": MAX_BATCH}
_SMALL: Final = {"minimum": 0, "maximum": LARGEST_COUNT}
_SEVERAL: Final = {"maxItems": MAX_BATCH}

#: By the names of structs and their fields.
FIELDS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "NewTask": {
        "task_id": _TASK_ID,
        "type": _NAME,
        "queue": _NAME,
        "request_id": _VISIBLE,
        "priority": _PRIORITY,
        "delay_ms": _MS,
        "run_at_ms": {"minimum": 0, "maximum": LAST_MS},
    },
    "RunPolicy": {
        "max_attempts": {"minimum": 1, "maximum": MAX_ATTEMPTS},
        "base_ms": _MS,
        "cap_ms": _MS,
        "jitter": {"minimum": 0, "maximum": 1},
        "give_up_on": {"maxItems": MAX_ERROR_TYPES},
        "retry_on": {"maxItems": MAX_ERROR_TYPES},
        "timeout_ms": _MS,
        "expires_ms": _MS,
    },
    "Change": {"epoch": {"minimum": -1, "maximum": LARGEST_EXACT}, "delay_ms": _MS, "priority": _PRIORITY},
    "holdfast.stores.contract.Reserve": {
        "claim_id": _ID,
        "worker_id": _ID,
        "shares": {"maxItems": MAX_QUEUES},
        "max_tasks": _BATCH,
        "lease_ms": {"minimum": 0, "maximum": LONGEST_LEASE_MS},
    },
    "Enqueue": {"tasks": _SEVERAL},
    "Apply": {"changes": _SEVERAL},
    "Extend": {"holds": _SEVERAL, "lease_ms": {"minimum": -LONGEST_MS, "maximum": LONGEST_LEASE_MS}},
    "TaskIds": {"task_ids": _SEVERAL},
    "Keep": {"key": _VISIBLE, "ttl_ms": _MS},
    "Key": {"key": _VISIBLE},
    "Epoch": {"limit": _BATCH},
    "Limit": {"limit": _BATCH},
    "Prune": {"limit": _BATCH},
    "Query": {"limit": {"minimum": 1, "maximum": MAX_BATCH}},
    "Wait": {"bells": {"maxItems": MAX_QUEUES, "items": {"type": "string", **_NAME}}, "timeout_ms": _MS},
    "Announce": {"ttl_ms": {"minimum": 0, "maximum": LONGEST_TTL_MS}},
    "WorkerRecord": {
        "worker_id": _ID,
        "host": _ID,
        "version": _ID,
        "pid": _SMALL,
        "processes": _SMALL,
        "concurrency": _SMALL,
        "running": _SMALL,
        "ended_last_minute": _SMALL,
        "memory_bytes": {"minimum": 0, "maximum": LARGEST_MEMORY_BYTES},
    },
    "WorkerOrders": {"concurrency": _BATCH},
    "Order": {"worker_id": _ID},
    "HoldDuty": {"name": _ID, "ttl_ms": _MS},
    "Pause": {"queue": _NAME},
    "SetStep": {"queue": _NAME, "step_ms": {"minimum": 1, "maximum": STRICT_STEP_MS}},
    "Schedules": {"due_within_ms": _MS, "limit": {"minimum": 0, "maximum": MAX_SCHEDULES}},
    "Name": {"name": _NAME},
    "PutSchedule": {"name": _NAME, "tasks": _SEVERAL},
    "Call": {"type": _NAME, "queue": _NAME},
    "Kind": {"kind": _NAME},
    "DocumentName": {"kind": _NAME, "name": _NAME},
    "PutDocument": {"kind": _NAME, "name": _NAME},
    "DiscardManyBody": {"reason": {"pattern": r"\S"}},
}

_EITHER: Final = {"oneOf": [{"required": ["task_ids"]}, {"required": ["filter"]}]}
#: What is said of structs as a whole.
WHOLE: Final[Mapping[str, Mapping[str, Any]]] = {
    "TaskBody": {"not": {"required": ["delay", "run_at"]}},
    "ReplayBody": _EITHER,
    "DiscardManyBody": _EITHER,
}


def bounded(components: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas of structs with all that is said of them here."""
    return {name: _bounded(name, _texts(schema)) for name, schema in components.items()}


def _bounded(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    for field, bound in FIELDS.get(name, {}).items():
        properties = {**properties, field: {**properties[field], **bound}}
    return {**schema, **({"properties": properties} if properties else {}), **WHOLE.get(name, {})}


def _texts(schema: Any) -> Any:
    """The same with a pattern wherever text is base64, and without the demand that sets are sent as sets."""
    if isinstance(schema, list):
        return [_texts(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    own = {"pattern": _BASE64} if schema.get("contentEncoding") == "base64" else {}
    # Twice the same is once.
    return {name: _texts(value) for name, value in schema.items() if name != "uniqueItems"} | own
