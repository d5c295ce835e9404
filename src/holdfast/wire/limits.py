"""How much of something one request may bring."""

from __future__ import annotations

from typing import Final

#: The body of a request that is about one thing.
MAX_BODY_BYTES: Final = 1024 * 1024
#: The body of a request that takes a batch; whoever has more sends several.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
#: A request waits no longer than this for a task, a result or a bell.
LONGEST_WAIT_MS: Final = 20_000
