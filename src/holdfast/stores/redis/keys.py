"""The keys of a partition. All begin with its hash tag, so that they live in one slot.

    {hf:0}/t/TASK_ID            hash    the task: see `FIELDS`
    {hf:0}/h/TASK_ID            list    the last claims that ended without success, msgpack
    {hf:0}/ready/QUEUE/TYPE     zset    ready tasks of priority 0 by the time they became ready
    {hf:0}/ready/QUEUE/TYPE/PRIORITY    the same of another priority
    {hf:0}/types/QUEUE          zset    types that have ready tasks of priority 0, by the time the first became ready
    {hf:0}/types/QUEUE/PRIORITY         the same of another priority
    {hf:0}/levels/QUEUE         set     priorities other than 0 that have ready tasks
    {hf:0}/due                  zset    scheduled and retry_pending tasks by the time they are due
    {hf:0}/claims               zset    claimed tasks by the end of their lease
    {hf:0}/claim/CLAIM_ID       zset    tasks that one reserve call got and that are not settled, in its order
    {hf:0}/fresh/CLAIM_ID       string  the last call that claimed without looking; expires, only a repeat asks for it
    {hf:0}/deadlines            zset    tasks that may expire, by the time until when they must have begun
    {hf:0}/done/STATE           zset    finished tasks by the time when they are deleted
    {hf:0}/arrived/STATE        zset    the same by their number of arrival; not those that succeeded
    {hf:0}/batch/NAME           string  a batch in several parts that was admitted; expires, only a repeat asks for it
    {hf:0}/all                  zset    every task by its number of arrival
    {hf:0}/seq                  string  the last number of arrival
    {hf:0}/n                    hash    QUEUE/STATE -> how many: a view that no decision depends on
    {hf:0}/req/QUEUE            hash    request_id -> task_id
    {hf:0}/document/KIND/NAME   string  a document: its version, when it is due, when it expires, its value
    {hf:0}/names/KIND           zset    names of all documents of a kind; of discarded tasks by their order
    {hf:0}/due/KIND             zset    names of documents by the time they are due
    {hf:0}/expires              zset    KIND/NAME of documents by the time they expire
    {hf:0}/paused               set     paused queues, from their documents
    {hf:0}/steps                hash    QUEUE -> what a level of priority is worth, from its document
    {hf:0}/map                  string  the version of the partition map, from its document
    {hf:0}/server               hash    run_id of the server last seen, since when (0: from the start), last repeat,
                                        last look for expired claims, how far claims and queues are looked through
    {hf:0}/leader/NAME          hash    owner, epoch, expiry, time to live
    {hf:0}/workers              hash    worker_id -> record
    {hf:0}/beats                hash    worker_id -> started, seen, expiry
    {hf:0}/wakeup/QUEUE         list    a wake-up, one element at most; expires, `promote` makes another

Names of queues, types and kinds cannot contain a slash.
"""

from __future__ import annotations

from typing import Final

#: The fields of a task's hash; optional ones are left out while they do not apply, or have the default.
FIELDS: Final = {
    "s": "state",
    "q": "queue",
    "y": "type",
    "p": "priority",
    "c": "when it was enqueued, ms",
    "r": "when it is due, or became ready, ms",
    "a": "attempts used",
    "d": "deliveries",
    "b": "payload",
    "i": "request_id; optional",
    "h": "headers, JSON; optional",
    "o": "run policy, JSON; optional",
    "k": "result_ttl_ms; optional",
    "m": "dead_letter_ttl_ms; optional",
    "t": "token of the claim, also of the one that succeeded; optional",
    "w": "worker_id of the claim; optional",
    "l": "when it was claimed, ms; optional",
    "x": "the longest lease that the claim got, ms; optional",
    "z": "1 if cancellation was requested; optional",
    "e": "reason of its end, or of the cancellation; optional",
    "g": "progress, JSON; optional",
    "f": "when it finished, ms; optional",
    "u": "result; optional",
}


def partition_key(prefix: str, partition: int) -> str:
    """The beginning of every key of a partition; the braces make it the hash tag."""
    return f"{{{prefix}:{partition}}}"


def wakeup_key(base: str, name: str) -> str:
    """The list that waiters for this queue pop from."""
    return f"{base}/wakeup/{name}"
