"""Random calls on a store, made on the model as well: same answers, same tasks, nothing lost."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change, Event
from holdfast.core.task import Enqueued, Hold, NewTask, State
from holdfast.errors import StaleEpoch
from holdfast.stores import documents
from holdfast.stores.contract import Query, Reserve, Retention
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.kit import FOREIGN_TOKEN, KEEP_NOTHING
from holdfast.testing.kit.model import drawing
from holdfast.testing.kit.model.bench import Bench
from holdfast.testing.kit.model.drawing import QUEUES, Draft, Ending
from holdfast.testing.kit.model.oracle import CONFLICT

picks = st.integers(0, 999)
some_picks = st.lists(picks, min_size=1, max_size=3)
some_endings = st.lists(drawing.endings, min_size=1, max_size=4)
#: Lost reply: the call is made, its answer dropped, and the same call made again.
twice = st.sampled_from([False, False, False, True])
_ASKED_FOR = (Event.CANCEL, Event.PRIORITIZE, Event.RESCHEDULE, Event.REPLAY, Event.EXPIRE, Event.DISCARD)


class Working(Bench):
    """The rules: what callers, people, maintenance and processes do, in any order."""

    @initialize(drafts=st.lists(drawing.drafts, min_size=3, max_size=8))
    def begin(self, drafts: list[Draft]) -> None:
        """Every run has tasks from the start: Hypothesis leaves out some of the rules in each."""
        self.start()
        self.enqueue(drafts, lost=False)

    @rule(drafts=st.lists(drawing.drafts, max_size=2), wish=drawing.wishes, endings=some_endings, lost=twice)
    def work(self, drafts: list[Draft], wish: drawing.Wish, endings: list[Ending], lost: bool) -> None:
        """A stretch of plain work: new tasks come, a worker reserves and settles, the maintenance promotes."""
        self.enqueue(drafts, lost)
        self.reserve(wish, [], lost)
        self.settle(endings, lost)
        self.promote(lost)

    # -- enqueue --------------------------------------------------------------------------------------------

    @rule(drafts=st.lists(drawing.drafts, min_size=1, max_size=4), lost=twice)
    def enqueue(self, drafts: list[Draft], lost: bool) -> None:
        """New tasks, some with a request_id that may be known."""
        self._enqueue([draft.task(self.new_id(draft), self.clock.now_ms()) for draft in drafts], lost)

    @precondition(lambda self: self.sent)
    @rule(numbers=some_picks, changed=st.booleans(), lost=twice)
    def enqueue_again(self, numbers: list[int], changed: bool, lost: bool) -> None:
        """Tasks that were sent before, as they were or with another payload."""
        tasks = [self.sent[pick % len(self.sent)] for pick in numbers]
        self._enqueue([drawing.altered(task) for task in tasks] if changed else tasks, lost)

    def new_id(self, draft: Draft) -> str:
        """An id in the partition where the store wants the task."""
        return self.ids.task_id(self.place(draft.queue, draft.request_id))

    def _enqueue(self, tasks: Sequence[NewTask], lost: bool) -> None:
        self.sent += tasks
        self.same("enqueued", lambda: self.model.enqueue(tasks), lambda: self._enqueued(tasks), lost)

    async def _enqueued(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """The store's answers, with the model's text for a conflict."""
        answers = await self.store.enqueue(tasks)
        return [Enqueued(answer.task_id, answer.created, answer.conflict and CONFLICT) for answer in answers]

    # -- reserve and settle ---------------------------------------------------------------------------------

    @rule(wish=drawing.wishes, endings=st.lists(drawing.endings, max_size=3), lost=twice)
    def reserve(self, wish: drawing.Wish, endings: list[Ending], lost: bool) -> None:
        """Asks for tasks, with some settlements sent along."""
        request = wish.request(self.ids.claim_id())
        changes = [change for ending in endings for change in self._ending(ending)]
        self.reserves.append((request, changes))
        self._reserve(request, changes, lost)

    @precondition(lambda self: self.reserves)
    @rule(pick=picks, later_ms=st.sampled_from([0, 7]))
    def reserve_again(self, pick: int, later_ms: int) -> None:
        """Sends an earlier request again, most often the last one."""
        self.clock.advance(later_ms)
        request, changes = self.reserves[-1 if pick % 2 else pick % len(self.reserves)]
        self._reserve(request, changes, lost=False)

    def _reserve(self, request: Reserve, changes: list[Change], lost: bool) -> None:
        verdicts = self.model.apply(changes)
        answer = self.do(self.store.reserve(request, changes))
        if lost:
            answer = self.do(self.store.reserve(request, changes))
        self.model.reserve(request, answer.tasks)
        self.claims += answer.tasks
        expect("verdicts", answer.verdicts, self.model.apply(changes) if lost else verdicts)

    @precondition(lambda self: self.claims)
    @rule(endings=some_endings, lost=twice)
    def settle(self, endings: list[Ending], lost: bool) -> None:
        """Ends claims: current, stale and unknown ones."""
        self.apply([change for ending in endings for change in self._ending(ending)], lost)

    @precondition(lambda self: self.changes)
    @rule(pick=picks)
    def settle_again(self, pick: int) -> None:
        """Sends earlier changes again."""
        self.apply(self.changes[pick % len(self.changes)], lost=False)

    def _ending(self, ending: Ending) -> list[Change]:
        current = self.model.held()
        claims = self.claims if ending.old or not current else current
        if not claims:
            return []
        return [ending.change(claims[ending.pick % len(claims)], self.model.epoch)]

    def apply(self, changes: list[Change], lost: bool) -> None:
        """Sends changes, and compares the verdicts."""
        self.changes.append(changes)
        self.same("verdicts", lambda: self.model.apply(changes), lambda: self.store.apply(changes), lost)

    @precondition(lambda self: self.claims)
    @rule(numbers=some_picks, lease_ms=drawing.leases, lost=twice)
    def extend(self, numbers: list[int], lease_ms: int, lost: bool) -> None:
        """Extends claims: current, stale and unknown ones in one call."""
        holds = [self._hold(pick) for pick in numbers]
        model, store = self.model, self.store
        self.same("extensions", lambda: model.extend(holds, lease_ms), lambda: store.extend(holds, lease_ms), lost)

    @precondition(lambda self: self.claims)
    @rule(key=st.sampled_from(drawing.KEYS), pick=picks, ttl_ms=drawing.times_to_live, lost=twice)
    def keep(self, key: str, pick: int, ttl_ms: int, lost: bool) -> None:
        """Keeps a value under a key by a claim, current or stale, and looks at all keys."""
        hold, value, values = self._hold(pick), b"%d" % pick, self.model.memos
        reason = self.model.objection(hold)
        self.same(
            "answer to keep",
            lambda: values.keep(key, value, ttl_ms, reason),
            lambda: documents.keep(self.store, key, value, ttl_ms, hold),
            lost,
        )
        for each in drawing.KEYS:
            expect(f"kept under {each}", self.do(documents.kept(self.store, each)), values.kept(each))

    def _hold(self, pick: int) -> Hold:
        current = self.model.held()
        claims = self.claims if pick % 3 == 0 or not current else current
        if not claims or pick % 11 == 0:
            return Hold(self.task_id(pick), FOREIGN_TOKEN)
        claim = claims[pick % len(claims)]
        return Hold(claim.task_id, claim.token, b"%d" % pick if pick % 2 else None)

    # -- what people ask for --------------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(event=st.sampled_from(_ASKED_FOR), numbers=some_picks, lost=twice)
    def ask(self, event: Event, numbers: list[int], lost: bool) -> None:
        """Cancels, prioritizes, reschedules, replays, expires or discards tasks, most of which can be."""
        changes = [
            Change(
                event,
                self._allowed(event, pick),
                reason=f"reason {pick}",
                priority=pick % 9 - 4,
                delay_ms=pick % 4 * 50 if event is Event.RESCHEDULE else 0,
            )
            for pick in numbers
        ]
        self.apply(changes, lost)
        records = self.do(documents.discards(self.store, 1_000))
        expect("records of discards", {record.task_id for record in records}, self.model.discards)

    def _allowed(self, event: Event, pick: int) -> str:
        states = lifecycle.sources(event)
        ids = [task_id for task_id, entry in self.model.entries.items() if entry.standing.state in states]
        return ids[pick % len(ids)] if ids and pick % 5 else self.task_id(pick)

    @rule(queue=st.sampled_from(QUEUES))
    def pause_or_resume(self, queue: str) -> None:
        """Turns a queue off or on, with a look at how it holds back its tasks."""
        paused = queue not in self.model.paused
        self.do(documents.pause(self.store, queue, paused))
        self.model.paused ^= {queue}
        self.reserve(drawing.EVERYTHING, [], lost=False)

    # -- time and maintenance -------------------------------------------------------------------------------

    @rule(milliseconds=st.sampled_from([0, 1, 10, 1_000, 100_000]), off_by=st.sampled_from([0, -1, 1]))
    def let_time_pass(self, milliseconds: int, off_by: int) -> None:
        """Goes on by a fixed time, or to when something is due or runs out, or a millisecond beside it."""
        self.clock.advance(milliseconds or max(self.model.next_event_ms() + off_by, 0))

    @rule(lost=twice)
    def promote(self, lost: bool) -> None:
        """Promotes what is due."""
        self.same("promoted", self.model.promote, lambda: self.store.promote(self.model.epoch), lost)

    @precondition(lambda self: self.model.held())
    @rule(lost=twice, keep_alive=st.booleans(), late=st.booleans())
    def requeue_expired(self, lost: bool, keep_alive: bool, late: bool) -> None:
        """Takes expired claims away; a holder may extend one of them in between."""
        self.clock.advance(self.model.next_lease_ms() if late else 0)
        found = self.do(self.store.expired()).claims
        expect("expired claims", sorted(found, key=lambda claim: claim.task_id), self.model.expired())
        if keep_alive and found:
            hold = Hold(found[0].task_id, found[0].token)
            expect("late extension", self.do(self.store.extend([hold], 5)), self.model.extend([hold], 5))
        changes = [
            lifecycle.expire_lease(
                gone.task_id, gone.token, attempt=gone.attempt, policy=gone.policy, epoch=self.model.epoch
            )
            for gone in found
        ]
        self.apply(changes, lost)

    @precondition(lambda self: self.model.finished())
    @rule(retention=drawing.retentions)
    def prune(self, retention: Retention) -> None:
        """Deletes finished tasks by age and number, and values by their time, until a call finds none."""
        answer = 0
        while pruned := self.do(self.store.prune(self.model.epoch, retention)):
            answer += pruned
        ids = list(self.model.entries)
        gone = {task_id for task_id, task in zip(ids, self.do(self.store.get(ids)), strict=True) if task is None}
        self.model.prune(retention, gone, answer)

    # -- processes ------------------------------------------------------------------------------------------

    @rule(prunes=st.booleans(), off_by=st.sampled_from([-1, 1]))
    def take_over(self, prunes: bool, off_by: int) -> None:
        """Another process becomes the leader; any other epoch is refused from then on."""
        self.change_leader()
        self._expect_refusal(self.model.epoch + off_by, prunes)

    def _expect_refusal(self, epoch: int, prunes: bool) -> None:
        call = self.store.prune(epoch, KEEP_NOTHING) if prunes else self.store.promote(epoch)
        try:
            self.do(call)
        except StaleEpoch:
            return
        raise AssertionError(f"epoch {epoch} is refused while {self.model.epoch} is the leader's")

    @precondition(lambda self: len(self.stores) > 1)
    @rule(reopened=st.booleans())
    def go_on_in_the_other_process(self, reopened: bool) -> None:
        """The next calls go through the other opened store, or through one that is opened anew."""
        if reopened:
            self.do(self.store.close())
            self.stores[0] = self.do(self.harness.open())
        self.stores.reverse()

    # -- looking --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(state=st.none() | st.sampled_from(sorted(State)), limit=st.integers(1, 4))
    def look(self, state: State | None, limit: int) -> None:
        """Goes through all pages of a search: every task once."""
        query = Query(states=None if state is None else frozenset({state}), limit=limit)
        found: list[str] = []
        for _ in range(len(self.model.entries) + 1):
            page = self.do(self.store.find(query))
            found += [task.task_id for task in page.tasks]
            if page.cursor is None:
                break
            query = msgspec.structs.replace(query, cursor=page.cursor)
        entries = self.model.entries.items()
        wanted = [task_id for task_id, entry in entries if state in (None, entry.standing.state)]
        expect("tasks found", sorted(found), sorted(wanted))
