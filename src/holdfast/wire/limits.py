"""How much of something one request may bring, and one answer."""

from __future__ import annotations

from typing import Final

#: The body of a request that is about one thing.
MAX_BODY_BYTES: Final = 1024 * 1024
#: The body of a request that takes a batch; whoever has more sends several.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
#: The bodies that are under way at one gateway, all of them together, small ones not counted.
MAX_BODIES_BYTES: Final = 256 * 1024 * 1024
SMALL_BODY_BYTES: Final = 64 * 1024
#: A list of tasks ends with the one that makes it longer than this, and is gone on with by its cursor.
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
#: A request waits no longer than this for a task, a result or a bell.
LONGEST_WAIT_MS: Final = 20_000
#: A lease that is shorter runs out on the way, one that is longer keeps the task of a dead worker from the others.
SHORTEST_LEASE_MS: Final = 500
LONGEST_LEASE_MS: Final = 86_400_000
#: A worker that is heard of less often than this is none that anybody can rely on.
LONGEST_TTL_MS: Final = 3_600_000

#: Queues in one request for tasks or one worker's list, and bells in one wait.
MAX_QUEUES: Final = 64
#: Task types in one request for tasks or one worker's list.
MAX_TYPES: Final = 10_000
#: Classes of errors in a policy.
MAX_ERROR_TYPES: Final = 100
#: Dead letters that one bulk action changes.
MAX_BULK: Final = 10_000
#: Schedules in one answer.
MAX_SCHEDULES: Final = 100_000
#: Ids of claims and workers, classes of errors.
LONGEST_ID: Final = 200
#: Of a store with some hundred partitions, it has a place in each.
LONGEST_CURSOR: Final = 16 * 1024

#: Larger ones are not exact wherever numbers are floats: epochs, versions.
LARGEST_EXACT: Final = 2**53
#: What a worker says of itself: process ids, tasks at once; and its memory.
LARGEST_COUNT: Final = 2**40
LARGEST_MEMORY_BYTES: Final = 2**52
