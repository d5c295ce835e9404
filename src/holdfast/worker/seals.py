"""Arguments before they are decoded, results after they are encoded: as the app signs and encrypts them."""

from __future__ import annotations

from typing import Any

from holdfast.core.sealing import is_sealed, needs_key
from holdfast.worker.run import Run


def opened_arguments(run: Run) -> bytes:
    """The arguments of a task as its producer gave them; `NotGenuine` or `UnknownKey` if they cannot be had."""
    sealing, payload = run.type.sealing, run.task.payload
    if sealing is not None:
        return sealing.opened(run.task)
    if is_sealed(payload):
        raise needs_key(payload, f"the arguments of {run.task.type}")
    return payload


def encoded_result(run: Run, value: Any) -> bytes:
    """What a function has returned, as the store keeps it."""
    result = run.type.codec.encode_result(value)
    return result if run.type.sealing is None else run.type.sealing.result(run.task, result)
