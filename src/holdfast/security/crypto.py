"""Arguments and results that a third party cannot change, or cannot even read: signed, encrypted, or both.

A signature (HMAC-SHA-256) stands in a header of the task, and the arguments stay as they are. Encrypted (AES-256-GCM)
arguments are a JSON object with one text in it, so that a store or a server keeps them like any others; they are signed
too, by a key that is derived if there is none. Both are bound to the task type and the queue. What belongs together is
told apart by lengths, never by what stands in between.

    header     holdfast-signature: v1.KEY_ID.SIGNED_AT.BASE64URL(mac)     SIGNED_AT: seconds since 1970
    header     holdfast-signature: s1.KEY_ID.BASE64URL(mac)               of a schedule, with holdfast-timing
    arguments  `{"holdfast:encrypted":"v1.KEY_ID.BASE64URL(nonce + ciphertext + tag)"}`

A task cannot be run again by copying it. A `v1` signature is bound to the task_id, and good for tasks that are enqueued
within an hour of it, by the store's clock; while it is, the store still knows the task_id. An `s1` signature is bound
to the name and the timing of the schedule: it is good for its occurrences, each under the one task_id that follows from
both, and each for as long as the store still knows that.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast.core.ids import created_at_ms, occurrence_id, partition_of
from holdfast.core.payload import ENCRYPTED_END, ENCRYPTED_START, SIGNATURE_HEADER, is_encrypted
from holdfast.core.schedule.occurrences import (
    OCCURRENCE_HEADER,
    SCHEDULE_HEADER,
    TIMING_HEADER,
    read_signed_timing,
    shown_time,
    signed_timing,
)
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.core.task import Claimed, NewTask, Task
from holdfast.errors import BadOption, NotGenuine, PayloadTooLarge, UnknownKey
from holdfast.security.keys import Keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


#: So far apart may the signature of a task and its enqueue be: clocks differ, and an enqueue is repeated.
SIGNED_WITHIN_MS: Final = 3_600_000
#: A signed task is kept for at least this long after its end, whatever the app says: as long as its signature is good.
REMEMBERED_MS: Final = 2 * SIGNED_WITHIN_MS
_SECONDS = re.compile(r"[0-9]{1,11}", re.ASCII)
_OF_TASK, _OF_SCHEDULE = "v1", "s1"
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class PayloadCrypto:
    """How an app signs and encrypts, and what it takes."""

    def __init__(
        self,
        signing: Keys | None,
        encryption: Keys | None,
        max_bytes: int,
        random_bytes: Callable[[int], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        self._signing = encryption.derived("holdfast-signature") if signing is None and encryption else signing
        self._encryption = encryption
        self._max_bytes = max_bytes
        self._random_bytes = random_bytes
        #: A test may set another clock.
        self.now_ms = now_ms
        if encryption is not None:
            _cipher(encryption.current)  # says now if it cannot be had

    # -- for producers ----------------------------------------------------------------------------------------

    def task(self, task: NewTask) -> NewTask:
        """The task with signed arguments, encrypted if there is a key; with a request_id a repeat is byte-identical."""
        what = f"arguments of {task.type}"
        about = _about("arguments", task.type, task.queue)
        payload = self._encrypted(task.payload, about, what, alike=task.request_id is not None)
        return replace(task, payload=payload, headers={**task.headers, **self._task_headers(task, payload)})

    def call(self, call: ScheduledCall, name: str, timing: Timing) -> ScheduledCall:
        """What this schedule enqueues, protected like a task; each declaration of it has the same bytes."""
        what = f"arguments of {call.type}"
        payload = self._encrypted(call.payload, _about("arguments", call.type, call.queue), what, alike=True)
        headers = self._schedule_headers(call, payload, name, signed_timing(timing).text)
        return replace(call, payload=payload, headers={**call.headers, **headers})

    def opened_call(self, schedule: Schedule) -> ScheduledCall:
        """What a schedule enqueues, as its declarer gave it; `NotGenuine` if that had not our keys."""
        call, what = schedule.call, f"schedule {schedule.name}"
        if self._signing is not None:
            _check(self._signing, call.headers, what, lambda form: _of_schedule(call, form, schedule.name))
        payload = self._decrypted(call.payload, _about("arguments", call.type, call.queue), f"the arguments of {what}")
        return replace(call, payload=payload, headers=_without_ours(call.headers))

    def on_demand(self, schedule: Schedule, task: NewTask) -> NewTask:
        """A task of a schedule that is run on demand, protected like any other task."""
        payload = self.opened_call(schedule).payload
        return self.task(replace(task, payload=payload, headers=_without_ours(task.headers)))

    def is_same(self, task: Task, payload: bytes) -> bool:
        """Whether these are the arguments of a task, whichever key they were encrypted with."""
        try:
            return self.opened_arguments(task) == payload
        except (NotGenuine, UnknownKey):
            return False

    def opened_arguments(self, task: Task) -> bytes:
        """The arguments of a task for people and producers, who look at them without running them."""
        about = _about("arguments", task.type, task.queue)
        return self._decrypted(task.payload, about, f"the arguments of task {task.task_id}")

    def opened_result(self, task: Task, result: bytes) -> bytes:
        """The result of a task as its function gave it."""
        return self._decrypted(
            result, _about("result", task.type, task.queue, task.task_id), f"the result of task {task.task_id}"
        )

    # -- for workers, and for those who enqueue a task again -------------------------------------------------

    def opened(self, task: Claimed | Task) -> bytes:
        """The arguments of a task; `NotGenuine` if they are not what a producer with our keys has enqueued there."""
        what = f"the arguments of {task.type}"
        self._check_encrypted(task.payload, what)
        if self._signing is not None:
            form = _check(self._signing, task.headers, f"task {task.task_id}", lambda form: _of_claim(task, form))
            if form == _OF_SCHEDULE:
                _check_occurrence(task)
            elif form == _OF_TASK:
                _check_age(task)
        return self._decrypted(task.payload, _about("arguments", task.type, task.queue), what)

    def result(self, task: Claimed | Task, result: bytes) -> bytes:
        """The result of a task, for the store."""
        about = _about("result", task.type, task.queue, task.task_id)
        return self._encrypted(result, about, f"{task.type}(): result", alike=True)

    def kept(self, key: str, value: bytes) -> bytes:
        """What is kept under a key, for the store."""
        return self._encrypted(value, _about("kept", key), f"once({key!r}): result", alike=True)

    def opened_kept(self, key: str, value: bytes) -> bytes:
        """What is kept under a key."""
        return self._decrypted(value, _about("kept", key), f"what is kept under {key!r}")

    # -- signatures -------------------------------------------------------------------------------------------

    def _task_headers(self, task: NewTask, payload: bytes) -> dict[str, str]:
        if self._signing is None:
            return {}
        key_id, signed_at = self._signing.current_id, str(self.now_ms() // 1000)
        words = (_OF_TASK, key_id, signed_at, task.type, task.queue, task.task_id)
        return {SIGNATURE_HEADER: f"{_OF_TASK}.{key_id}.{signed_at}.{_mac(self._signing.current, words, payload)}"}

    def _schedule_headers(self, call: ScheduledCall, payload: bytes, name: str, timing: str) -> dict[str, str]:
        if self._signing is None:
            return {}
        key_id = self._signing.current_id
        words = (_OF_SCHEDULE, key_id, call.type, call.queue, name, timing)
        mac = _mac(self._signing.current, words, payload)
        return {SIGNATURE_HEADER: f"{_OF_SCHEDULE}.{key_id}.{mac}", TIMING_HEADER: timing}

    # -- encryption -------------------------------------------------------------------------------------------

    def _encrypted(self, data: bytes, about: bytes, what: str, *, alike: bool) -> bytes:
        """The data encrypted; `alike` gives equal data about the same thing equal bytes, so that repeats are seen."""
        keys = self._encryption
        if keys is None:
            return data
        about = _joined(b"v1", keys.current_id.encode(), about)
        nonce = _nonce(keys.current, about, data) if alike else self._random_bytes(_NONCE_BYTES)
        encrypted = nonce + _cipher(keys.current).encrypt(nonce, data, about)
        payload = b"%bv1.%b.%b%b" % (
            ENCRYPTED_START,
            keys.current_id.encode(),
            _text(encrypted).encode(),
            ENCRYPTED_END,
        )
        if len(payload) > self._max_bytes:
            raise PayloadTooLarge(
                f"{what}: {len(payload):,} bytes when encrypted, the limit is {self._max_bytes:,}; "
                "keep large data elsewhere and pass a reference"
            )
        return payload

    def _check_encrypted(self, data: bytes, what: str) -> None:
        if self._encryption is not None and self._encryption.required and not is_encrypted(data):
            raise NotGenuine(f"{what} came unencrypted, and this app takes them encrypted only")

    def _decrypted(self, data: bytes, about: bytes, what: str) -> bytes:
        self._check_encrypted(data, what)
        if not is_encrypted(data):
            return data
        form, key_id, encrypted = _parts(data, what)
        if self._encryption is None:
            raise needs_key(data, what)
        key = self._encryption.get(key_id, what)
        try:
            return _cipher(key).decrypt(
                encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], _joined(form.encode(), key_id.encode(), about)
            )
        except Exception as error:
            if type(error).__name__ != "InvalidTag":
                raise
            raise NotGenuine(f"{what} cannot be decrypted: they were changed, or moved here") from None


def needs_key(data: bytes, what: str) -> UnknownKey:
    """The error of a process that has no keys at all."""
    return UnknownKey(f"{what} are encrypted with the key {_parts(data, what)[1]!r:.80}; set HOLDFAST_KEYS")


def shown(data: bytes) -> bytes:
    """Encrypted data as people are shown it: how much there is."""
    return b'{"encrypted":"%d bytes"}' % len(data)


def _parts(data: bytes, what: str) -> tuple[str, str, bytes]:
    form, _, rest = data[len(ENCRYPTED_START) : -len(ENCRYPTED_END)].decode("ascii", "replace").partition(".")
    key_id, _, text = rest.partition(".")
    try:
        encrypted = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        encrypted = b""
    if form != "v1" or len(encrypted) < _NONCE_BYTES + _TAG_BYTES or _text(encrypted) != text:
        raise NotGenuine(f"{what} are encrypted in a form that this version does not know")
    return form, key_id, encrypted


def _about(*words: str) -> bytes:
    """What data is about: it can be decrypted as nothing else."""
    return _joined(*(word.encode() for word in words))


def _joined(*parts: bytes) -> bytes:
    """The parts as one, in a way that no other parts have."""
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


# -- what a signature says ---------------------------------------------------------------------------------------

#: From what stands before the mac in its header: the words and the arguments that it is made of; None for no such form.
_Words = Callable[[Sequence[str]], tuple[tuple[str, ...], bytes] | None]


def _check(keys: Keys, headers: Mapping[str, str], what: str, words_of: _Words) -> str | None:
    """The form of the signature, None if there is none and need not be; `NotGenuine` if it is wrong."""
    given = headers.get(SIGNATURE_HEADER)
    if given is None:
        if keys.required:
            raise NotGenuine(f"{what} is not signed, and this app runs signed tasks only")
        return None
    *signed, mac = given.split(".")
    found = words_of(signed)
    key = keys.get(signed[1], f"the signature of {what}") if found else b""
    if not found or not hmac.compare_digest(_mac(key, *found).encode(), mac.encode()):
        raise NotGenuine(f"the signature of {what} does not fit: it was changed, copied or moved here")
    return signed[0]


def _of_claim(task: Claimed | Task, signed: Sequence[str]) -> tuple[tuple[str, ...], bytes] | None:
    match signed:
        case [form, key_id, signed_at] if form == _OF_TASK and _SECONDS.fullmatch(signed_at):
            return (form, key_id, signed_at, task.type, task.queue, task.task_id), task.payload
        case [form, key_id] if form == _OF_SCHEDULE:
            name, timing = task.headers.get(SCHEDULE_HEADER, ""), task.headers.get(TIMING_HEADER, "")
            return (form, key_id, task.type, task.queue, name, timing), task.payload
    return None


def _of_schedule(call: ScheduledCall, signed: Sequence[str], name: str) -> tuple[tuple[str, ...], bytes] | None:
    match signed:
        case [form, key_id] if form == _OF_SCHEDULE:
            return (form, key_id, call.type, call.queue, name, call.headers.get(TIMING_HEADER, "")), call.payload
    return None


def _check_age(task: Claimed | Task) -> None:
    """Against a copy that is enqueued after the store has forgotten the task."""
    signed_at_ms = int(task.headers[SIGNATURE_HEADER].split(".")[2]) * 1000
    if abs(task.created_at_ms - signed_at_ms) > SIGNED_WITHIN_MS:
        raise NotGenuine(
            f"task {task.task_id} was signed at {shown_time(signed_at_ms)} and enqueued at "
            f"{shown_time(task.created_at_ms)} by the store's clock: it is a copy of an old task, or the clock of its "
            "producer is wrong"
        )


def _check_occurrence(task: Claimed | Task) -> None:
    """Refuses copies of a schedule's task: each occurrence has one task_id, and other times have none."""
    name, occurrence_ms = task.headers[SCHEDULE_HEADER], created_at_ms(task.task_id)
    what = f"task {task.task_id} of schedule {name}"
    is_own_id = task.task_id == occurrence_id(name, occurrence_ms, partition_of(task.task_id))
    if not is_own_id or task.headers.get(OCCURRENCE_HEADER) != shown_time(occurrence_ms):
        raise NotGenuine(f"{what} is not the one of its occurrence: it is a copy")
    misfit = read_signed_timing(task.headers[TIMING_HEADER]).misfit(occurrence_ms, task.created_at_ms)
    if misfit:
        raise NotGenuine(f"{what} is refused for its occurrence at {shown_time(occurrence_ms)}: {misfit}")


def _without_ours(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in {SIGNATURE_HEADER, TIMING_HEADER}}


def _mac(key: bytes, words: Sequence[str], payload: bytes) -> str:
    said = ("holdfast-signature", *words)
    return _text(hmac.digest(key, _joined(*(word.encode() for word in said), payload), "sha256"))


# -- bytes -------------------------------------------------------------------------------------------------------


def _nonce(key: bytes, about: bytes, data: bytes) -> bytes:
    """One that only equal data about the same thing has, which is as good as a random one."""
    nonce_key = hmac.digest(key, b"holdfast-nonce", "sha256")
    return hmac.digest(nonce_key, _joined(about, data), "sha256")[:_NONCE_BYTES]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@lru_cache(64)
def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise BadOption("encryption needs another package; run: pip install cryptography") from None
    return AESGCM(key)
