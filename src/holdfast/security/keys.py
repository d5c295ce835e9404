"""Keys for signing and for encryption: several at a time, so that they can be changed without a break."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from typing import Final, Literal, NoReturn

from holdfast.errors import BadOption, UnknownKey

KEY_BYTES: Final = 32
Use = Literal["sign", "encrypt"]
_USES: Final[tuple[Use, ...]] = ("sign", "encrypt")
_OPTIONAL: Final = "optional"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_FORM: Final = "sign:ID=BASE64 or encrypt:ID=BASE64, separated by commas, or @FILE with one a line"
_HOW: Final = "make one with: openssl rand -base64 32"


class Keys:
    """Keys of 32 bytes by their ids: the first is used for what is new, all of them for what is there.

    What comes without a signature or unencrypted is refused, unless `required` is False.
    """

    __slots__ = ("_keys", "current_id", "required")

    def __init__(self, keys: Mapping[str, bytes | str], *, required: bool = True) -> None:
        if not keys:
            raise BadOption(f"keys: at least one is needed; {_HOW}")
        self._keys = {_checked_id(key_id): _checked_key(key_id, key) for key_id, key in keys.items()}
        #: The id of the one for what is new.
        self.current_id = next(iter(self._keys))
        self.required = required

    @property
    def current(self) -> bytes:
        """The one for what is new."""
        return self._keys[self.current_id]

    def get(self, key_id: str, what: str) -> bytes:
        """The key of this id; `UnknownKey` says what needs it."""
        try:
            return self._keys[key_id]
        except KeyError:
            known = ", ".join(self._keys)
            raise UnknownKey(f"{what} needs the key {key_id!r:.80}; this process has {known}") from None

    def derived(self, purpose: str) -> Keys:
        """Other keys under the same ids, for another purpose: they tell nothing of these."""
        keys = {key_id: hmac.digest(key, purpose.encode(), "sha256") for key_id, key in self._keys.items()}
        return Keys(keys, required=self.required)

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._keys)})"


def parse_keys(text: str) -> dict[Use, Keys]:
    """Keys by their use, from `sign:ID=BASE64,encrypt:ID=BASE64`; the first of a use is for what is new.

    With the word `optional` among them, what is not signed or encrypted is taken too.
    """
    found: dict[Use, dict[str, bytes | str]] = {}
    words = [word.strip() for word in re.split(r"[,\n]", text) if word.strip() and not word.strip().startswith("#")]
    for word in words:
        if word == _OPTIONAL:
            continue
        use, _, rest = word.partition(":")
        key_id, equals, key = rest.partition("=")
        if use not in _USES or not equals:
            _refuse(words.index(word) + 1)
        keys = found.setdefault(use, {})
        if key_id in keys:
            raise BadOption(f"HOLDFAST_KEYS: the id {key_id!r:.80} is there twice for {use}")
        keys[key_id] = key
    return {use: Keys(keys, required=_OPTIONAL not in words) for use, keys in found.items()}


def _refuse(number: int) -> NoReturn:
    """Without the word itself: it may have a key in it."""
    raise BadOption(f"HOLDFAST_KEYS: entry {number} is refused: write {_FORM}")


def _checked_id(key_id: str) -> str:
    if not isinstance(key_id, str) or not _ID.fullmatch(key_id):
        raise BadOption(f"keys: the id {key_id!r:.80} is refused: use 1 to 64 of A-Z a-z 0-9 _ -")
    return key_id


def _checked_key(key_id: str, key: bytes | str) -> bytes:
    if isinstance(key, str):
        try:
            key = base64.b64decode(key, altchars=b"-_" if set(key) & {"-", "_"} else None, validate=True)
        except (binascii.Error, ValueError):
            raise BadOption(f"keys: the key {key_id} is not base64; {_HOW}") from None
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise BadOption(f"keys: the key {key_id} has not {KEY_BYTES} bytes; {_HOW}")
    return key
