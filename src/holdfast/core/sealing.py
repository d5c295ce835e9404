"""Arguments and results that nobody on the way can change, or not even read: signed, encrypted, or both.

A signature (HMAC-SHA-256) stands in a header of the task, and the arguments stay as they are. Encrypted (AES-256-GCM)
arguments are a JSON object with one text in it, so that a store or a gateway keeps them like any others. Both are bound
to the task type and the queue, a signature also to the task_id: nothing can be moved elsewhere or, while the store
knows the task_id, be played again. What belongs together is told apart by lengths, never by what stands in between.

    header     holdfast-signature: v1.KEY_ID.BASE64URL(mac)     (`s1` instead of `v1`: of a schedule, without a task_id)
    arguments  {"holdfast:sealed":"v1.KEY_ID.BASE64URL(nonce + ciphertext + tag)"}
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast.core.keys import Keys
from holdfast.core.schedule import Call
from holdfast.core.task import Claimed, NewTask, Task
from holdfast.errors import BadOption, NotGenuine, PayloadTooLarge, UnknownKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SIGNATURE_HEADER: Final = "holdfast-signature"
_OF_TASK, _OF_SCHEDULE = "v1", "s1"
_SEALED, _END = b'{"holdfast:sealed":"', b'"}'
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class Sealing:
    """How an app signs and encrypts, and what it takes."""

    def __init__(
        self, signing: Keys | None, encryption: Keys | None, max_bytes: int, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._signing = signing
        self._encryption = encryption
        self._max_bytes = max_bytes
        self._random_bytes = random_bytes
        if encryption is not None:
            _cipher(encryption.current)  # says now if it cannot be had

    # -- for producers ----------------------------------------------------------------------------------------

    def task(self, task: NewTask) -> NewTask:
        """The task with its arguments sealed; with a request_id a repeat of it has the same bytes."""
        what = f"arguments of {task.type}"
        payload = self._encrypted(
            task.payload, _about("arguments", task.type, task.queue), what, alike=task.request_id is not None
        )
        signature = self._signature(_OF_TASK, task.type, task.queue, task.task_id, payload)
        return replace(task, payload=payload, headers={**task.headers, **signature})

    def call(self, call: Call) -> Call:
        """What a schedule enqueues, sealed: for all its ticks, and the same bytes whoever declares it."""
        what = f"arguments of {call.type}"
        payload = self._encrypted(call.payload, _about("arguments", call.type, call.queue), what, alike=True)
        signature = self._signature(_OF_SCHEDULE, call.type, call.queue, "", payload)
        return replace(call, payload=payload, headers={**call.headers, **signature})

    def is_same(self, task: Task, payload: bytes) -> bool:
        """Whether these are the arguments of a task, whichever key they were encrypted with."""
        try:
            return self._decrypted(task.payload, _about("arguments", task.type, task.queue), "arguments") == payload
        except (NotGenuine, UnknownKey):
            return False

    def opened_result(self, task: Task, result: bytes) -> bytes:
        """The result of a task as its function gave it."""
        return self._decrypted(
            result, _about("result", task.type, task.queue, task.task_id), f"the result of task {task.task_id}"
        )

    # -- for workers ------------------------------------------------------------------------------------------

    def opened(self, task: Claimed) -> bytes:
        """The arguments of a task; `NotGenuine` if they are not what somebody with our keys has enqueued there."""
        if self._signing is not None:
            self._check_signature(self._signing, task)
        return self._decrypted(
            task.payload, _about("arguments", task.type, task.queue), f"the arguments of {task.type}"
        )

    def result(self, task: Claimed, result: bytes) -> bytes:
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

    def _signature(self, form: str, type_name: str, queue: str, task_id: str, payload: bytes) -> dict[str, str]:
        if self._signing is None:
            return {}
        key_id = self._signing.current_id
        mac = _mac(self._signing.current, form, key_id, type_name, queue, task_id, payload)
        return {SIGNATURE_HEADER: f"{form}.{key_id}.{_text(mac)}"}

    def _check_signature(self, keys: Keys, task: Claimed) -> None:
        given = task.headers.get(SIGNATURE_HEADER)
        if given is None:
            if keys.required:
                raise NotGenuine(f"task {task.task_id} is not signed, and this app runs signed tasks only")
            return
        form, _, rest = given.partition(".")
        key_id, _, text = rest.partition(".")
        task_id = task.task_id if form == _OF_TASK else ""
        key = keys.get(key_id, f"the signature of task {task.task_id}")
        wanted = _text(_mac(key, form, key_id, task.type, task.queue, task_id, task.payload))
        if form not in {_OF_TASK, _OF_SCHEDULE} or not hmac.compare_digest(wanted.encode(), text.encode()):
            raise NotGenuine(f"the signature of task {task.task_id} does not fit: it was changed, or moved here")

    # -- encryption -------------------------------------------------------------------------------------------

    def _encrypted(self, data: bytes, about: bytes, what: str, *, alike: bool) -> bytes:
        """The data encrypted; `alike` gives equal data about the same thing equal bytes, so that repeats are seen."""
        keys = self._encryption
        if keys is None:
            return data
        about = _joined(b"v1", keys.current_id.encode(), about)
        nonce = _nonce(keys.current, about, data) if alike else self._random_bytes(_NONCE_BYTES)
        sealed = nonce + _cipher(keys.current).encrypt(nonce, data, about)
        payload = b"%bv1.%b.%b%b" % (_SEALED, keys.current_id.encode(), _text(sealed).encode(), _END)
        if len(payload) > self._max_bytes:
            raise PayloadTooLarge(
                f"{what}: {len(payload):,} bytes when encrypted, the limit is {self._max_bytes:,}; "
                "keep large data elsewhere and pass a reference"
            )
        return payload

    def _decrypted(self, data: bytes, about: bytes, what: str) -> bytes:
        if not is_sealed(data):
            if self._encryption is not None and self._encryption.required:
                raise NotGenuine(f"{what} came unencrypted, and this app takes them encrypted only")
            return data
        form, key_id, sealed = _parts(data, what)
        if self._encryption is None:
            raise needs_key(data, what)
        key = self._encryption.get(key_id, what)
        try:
            return _cipher(key).decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _joined(form.encode(), key_id.encode(), about)
            )
        except Exception as error:
            if type(error).__name__ != "InvalidTag":
                raise
            raise NotGenuine(f"{what} cannot be decrypted: they were changed, or moved here") from None


def is_sealed(data: bytes | None) -> bool:
    """Whether these arguments, or this result, are encrypted."""
    return data is not None and data.startswith(_SEALED) and data.endswith(_END)


def needs_key(data: bytes, what: str) -> UnknownKey:
    """The error of a process that has no keys at all."""
    return UnknownKey(f"{what} are encrypted with the key {_parts(data, what)[1]!r:.80}; set HOLDFAST_KEYS")


def shown(data: bytes) -> bytes:
    """Encrypted data as people are shown it: how much there is."""
    return b'{"encrypted":"%d bytes"}' % len(data)


def is_bound(call: Call) -> bool:
    """Whether a call is good for its own queue only."""
    return is_sealed(call.payload) or SIGNATURE_HEADER in call.headers


def _parts(data: bytes, what: str) -> tuple[str, str, bytes]:
    form, _, rest = data[len(_SEALED) : -len(_END)].decode("ascii", "replace").partition(".")
    key_id, _, text = rest.partition(".")
    try:
        sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        sealed = b""
    if form != "v1" or len(sealed) < _NONCE_BYTES + _TAG_BYTES or _text(sealed) != text:
        raise NotGenuine(f"{what} are encrypted in a form that this version does not know")
    return form, key_id, sealed


def _about(*words: str) -> bytes:
    """What data is about: it can be decrypted as nothing else."""
    return _joined(*(word.encode() for word in words))


def _joined(*parts: bytes) -> bytes:
    """The parts as one, in a way that no other parts have."""
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def _mac(key: bytes, form: str, key_id: str, type_name: str, queue: str, task_id: str, payload: bytes) -> bytes:
    words = ("holdfast-signature", form, key_id, type_name, queue, task_id)
    return hmac.digest(key, _joined(*(word.encode() for word in words), payload), "sha256")


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
        raise BadOption("encryption needs another package; pip install 'holdfast[crypto]'") from None
    return AESGCM(key)
