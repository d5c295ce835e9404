"""How many files and connections this process may have open."""

from __future__ import annotations

import contextlib
from typing import Final

try:
    import resource
except ImportError:  # Windows has no such limit
    _HAS_LIMIT = False
else:
    _HAS_LIMIT = True


#: Where the system names no limit.
UNLIMITED: Final = 2**31


def limit() -> int:
    """How many may be open now."""
    if not _HAS_LIMIT:
        return UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft >= 0 else UNLIMITED


def allow_many() -> int:
    """Raises the limit to the highest that is allowed; the default of 1,024 is for programs that use `select`."""
    if not _HAS_LIMIT:
        return UNLIMITED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems do not keep to the limit that they name
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return limit()
