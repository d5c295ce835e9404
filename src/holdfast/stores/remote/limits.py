"""How much of something one request may bring, and one answer."""

from __future__ import annotations

from typing import Final

#: The body of a request that is about one thing.
MAX_BODY_BYTES: Final = 1024 * 1024
#: The body of a request that takes a batch; send several for more.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
#: One field of a body that is a list of names, or an object of our own.
MAX_FIELD_BYTES: Final = 1024 * 1024
#: The same for one that is a mapping, such as the headers of a task.
MAX_MAPPING_BYTES: Final = 64 * 1024
#: The bodies that are under way at one server, all of them together, and the answers. The first bytes of each are not
#: counted, so that small requests never wait for large ones. One token may have half of it.
MAX_BODIES_BYTES: Final = 64 * 1024 * 1024
MAX_ANSWERS_BYTES: Final = 64 * 1024 * 1024
SMALL_BODY_BYTES: Final = 64 * 1024
#: A list of tasks ends with the one that makes it longer than this, and is gone on with by its cursor.
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
#: A request waits no longer than this for a task, a result or a wake-up.
LONGEST_WAIT_MS: Final = 20_000
#: A lease that is shorter runs out on the way, one that is longer keeps the task of a dead worker from the others.
SHORTEST_LEASE_MS: Final = 500
LONGEST_LEASE_MS: Final = 86_400_000
#: Longest time to live of a worker between two announcements.
LONGEST_TTL_MS: Final = 3_600_000

#: Queues in one request for tasks or one worker's list, and wake-ups in one wait.
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
#: Reasons, messages, tracebacks, in characters: as much as a worker of ours keeps of a traceback.
LONGEST_TEXT: Final = 16 * 1024
#: Of a store with some hundred partitions, it has a place in each.
LONGEST_CURSOR: Final = 16 * 1024

#: Larger ones are not exact wherever numbers are floats: epochs, versions.
LARGEST_EXACT: Final = 2**53
#: What a worker says of itself: process ids, tasks at once; and its memory.
LARGEST_COUNT: Final = 2**40
LARGEST_MEMORY_BYTES: Final = 2**52
