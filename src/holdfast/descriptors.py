"""How many files and connections this process may have open."""

from __future__ import annotations

import contextlib
import resource


def allow_many() -> int:
    """Raises the limit to the highest that is allowed; the usual 1,024 is for programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems do not keep to the limit that they name
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
