"""The keys of an app: given to it, or from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from holdfast.core.keys import Keys, parse_keys
from holdfast.core.sealing import Sealing
from holdfast.errors import BadOption

#: Keys, or `@FILE` with keys in it.
KEYS_VARIABLE: Final = "HOLDFAST_KEYS"


def sealing_of(signing: Keys | None, encryption: Keys | None, max_payload: int) -> Sealing | None:
    """How an app signs and encrypts; None if it does neither. What it is given outweighs the environment."""
    for option, keys in (("signing", signing), ("encryption", encryption)):
        if keys is not None and not isinstance(keys, Keys):
            raise BadOption(f"{option}: give Keys({{'2026-11': key}}), where a key has 32 bytes")
    found = parse_keys(_text(os.environ.get(KEYS_VARIABLE, "")))
    signing, encryption = signing or found.get("sign"), encryption or found.get("encrypt")
    if signing is None and encryption is None:
        return None
    return Sealing(signing, encryption, max_payload, os.urandom)


def _text(variable: str) -> str:
    if not variable.startswith("@"):
        return variable
    try:
        return Path(variable[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{KEYS_VARIABLE}: cannot read {variable[1:]}: {type(error).__name__}") from None
