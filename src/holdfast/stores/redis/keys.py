"""The key of a partition. Every other key begins with it, so that all of them live in one slot.

    {hf:0}/t/TASK_ID            hash    the task: see FIELDS
    {hf:0}/h/TASK_ID            list    claims that ended without success, msgpack
    {hf:0}/ready/QUEUE/LANE     zset    ready tasks of one type and priority by the time they became ready
    {hf:0}/lanes/QUEUE          set     lanes that have tasks: TYPE, or TYPE/PRIORITY if that is not 0
    {hf:0}/due                  zset    scheduled and retry_pending tasks by the time they are due
    {hf:0}/claims               zset    claimed tasks by the end of their lease
    {hf:0}/claim/CLAIM_ID       zset    tasks that one reserve call got and that are not settled, in its order
    {hf:0}/fresh/CLAIM_ID       string  the last call that claimed without looking; expires, only a repeat asks for it
    {hf:0}/deadlines            zset    tasks that may expire, by the time until when they must have begun
    {hf:0}/done/STATE           zset    finished tasks by the time they finished
    {hf:0}/all                  zset    every task by its number of arrival
    {hf:0}/seq                  string  the last number of arrival
    {hf:0}/n                    hash    QUEUE/STATE -> how many: a view, never asked by a decision
    {hf:0}/req/QUEUE            hash    request_id -> task_id
    {hf:0}/kept                 zset    keys under which something is kept, by the end of its time
    {hf:0}/kept/KEY             string  what is kept under this key
    {hf:0}/paused               set     paused queues
    {hf:0}/steps                hash    QUEUE -> what a level of priority is worth there, if it is not the usual step
    {hf:0}/schedule/NAME        hash    a schedule: its version and its document, JSON
    {hf:0}/ticks                zset    names of schedules by the time of their next tick, +inf for none
    {hf:0}/documents/KIND       hash    NAME -> its version, a colon, the document
    {hf:0}/map                  hash    the partition map and its version
    {hf:0}/server               hash    run_id of the server last seen, end of the grace, longest lease, last repeat
    {hf:0}/duty/NAME            hash    owner, epoch, expiry
    {hf:0}/workers              hash    worker_id -> record
    {hf:0}/beats                hash    worker_id -> started, seen, expiry
    {hf:0}/orders               hash    worker_id -> what it is told to do
    {hf:0}/discards             list    records of discarded tasks, newest first
    {hf:0}/bell/QUEUE           list    at most one element: somebody should look

Names of queues and types cannot contain a slash.
"""

from __future__ import annotations


def partition_key(prefix: str, partition: int) -> str:
    """The beginning of every key of a partition; the braces make it the hash tag."""
    return f"{{{prefix}:{partition}}}"


def bell_key(base: str, name: str) -> str:
    """The list that waiters of this bell pop from."""
    return f"{base}/bell/{name}"
