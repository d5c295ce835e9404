"""Tasks at another time, again, and with other arguments; queues that are purged."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from holdfast.admin import actions
from holdfast.admin.copies import replay_changed
from holdfast.core import lifecycle
from holdfast.core.declared import DeclaredParameter, DeclaredType
from holdfast.core.payload import MAX_BYTES
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Failure
from holdfast.errors import Refused
from holdfast.producer.enqueue import crypto_of
from holdfast.stores.contract import Query, Store
from holdfast.stores.open import open_store
from tests.cli.conftest import CommandLine, failed, is_one_line

HOUR_MS = 3_600_000


def shown(cli: CommandLine, task_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = cli.json("tasks", "show", task_id)
    return answer


def promote(cli: CommandLine) -> None:
    async def lead(store: Store) -> None:
        for part in await store.partitions():
            leadership = await part.lead("maintenance", "test", 60_000)
            await part.promote(leadership.epoch)

    cli.store(lead)


def test_run_now_runs_delayed_tasks_and_pending_retries(any_cli: CommandLine) -> None:
    (delayed,) = any_cli.enqueue(delay_ms=HOUR_MS)
    any_cli.enqueue(policy=RunPolicy(base_ms=HOUR_MS, cap_ms=HOUR_MS))
    (claim,) = any_cli.claim()
    any_cli.settle(failed(claim, Failure("builtins.ValueError", "no")))
    answer = any_cli.ok("tasks", "run-now", delayed[:20], claim.task_id)
    assert answer == f"{delayed} is due now\n{claim.task_id} is due now\n"
    promote(any_cli)
    assert {task.task_id for task in any_cli.claim(2)} == {delayed, claim.task_id}


def test_run_now_of_a_running_task_is_refused(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    cli.claim()
    assert "is claimed: it cannot be run now" in is_one_line(cli.run("tasks", "run-now", task_id), 1)


def test_reschedule_to_a_time(any_cli: CommandLine) -> None:
    first, second = any_cli.enqueue(2)
    assert any_cli.ok("tasks", "reschedule", first, "--at", "2100-01-31T09:00:00Z") == (
        f"{first} is due at 2100-01-31T09:00:00.000Z\n"
    )
    assert abs(shown(any_cli, first)["run_at_ms"] - 4_105_069_200_000) < 60_000
    any_cli.ok("tasks", "reschedule", second, "--in", "10m")
    assert [shown(any_cli, each)["state"] for each in (first, second)] == ["scheduled", "scheduled"]
    assert any_cli.claim(2) == []
    any_cli.ok("tasks", "reschedule", first, "--at", "2000-01-01T00:00:00Z")
    promote(any_cli)
    assert [task.task_id for task in any_cli.claim(2)] == [first]


@pytest.mark.parametrize("options", [[], ["--in", "1h", "--at", "2100-01-31T09:00:00Z"], ["--at", "tomorrow"]])
def test_reschedule_needs_one_time(cli: CommandLine, options: list[str]) -> None:
    (task_id,) = cli.enqueue()
    is_one_line(cli.run("tasks", "reschedule", task_id, *options), 2)


# -- rerun ---------------------------------------------------------------------------------------------------


def test_rerun_enqueues_the_same_as_a_new_task(any_cli: CommandLine) -> None:
    policy = RunPolicy(max_attempts=2, timeout_ms=5_000)
    (done,) = any_cli.enqueue(policy=policy, priority=7, headers={"a": "b"}, request_id="once", payload=b'{"a":5}')
    (task,) = any_cli.claim()
    any_cli.settle(lifecycle.ack(done, task.token, b"3"))
    (new,) = any_cli.json("tasks", "rerun", done[:20])
    assert new["copy_of"] == done
    before, after = shown(any_cli, done), shown(any_cli, new["task_id"])
    same = ("type", "queue", "priority", "headers", "arguments", "policy")
    assert [after[key] for key in same] == [before[key] for key in same]
    assert (before["state"], after["state"], after["attempt"], after["request_id"]) == ("succeeded", "ready", 0, None)


def test_rerun_of_several_says_which_were_refused(cli: CommandLine) -> None:
    (dead,) = cli.dead_letters()
    (ready,) = cli.enqueue()
    result = cli.run("tasks", "rerun", ready, dead)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{dead} runs again as ")
    assert "only a task that has ended" in result.stderr


# -- replay with other arguments -----------------------------------------------------------------------------


def test_replay_with_a_changed_argument(any_cli: CommandLine) -> None:
    (dead,) = any_cli.dead_letters(payload=b'{"width":"wide","size":{"x":1,"y":2},"name":"a"}')
    changes = ("--set", "args.width=200", "--set", "args.size.y=[3]", "--set", "args.name=joe")
    (new,) = any_cli.json("dead", "replay", dead[:20], *changes)
    after = shown(any_cli, new["task_id"])
    assert after["arguments"] == {"width": 200, "size": {"x": 1, "y": [3]}, "name": "joe"}
    assert "no task" in any_cli.run("tasks", "show", dead).stderr
    promote(any_cli)
    assert [task.task_id for task in any_cli.claim()] == [new["task_id"]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("width=1", "write args.NAME=VALUE"),
        ("args.width={1", "not JSON"),
        ("args.widht=1", "did you mean width?"),
        ("args.width.x=1", "width is not an object"),
        ("args.", "key=value"),
    ],
)
def test_a_change_that_makes_no_sense_leaves_the_dead_letter(cli: CommandLine, change: str, words: str) -> None:
    (dead,) = cli.dead_letters(payload=b'{"width":3}')
    result = cli.run("dead", "replay", dead, "--set", change)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert len(cli.json("tasks", "ls")["tasks"]) == 1


def test_an_argument_that_was_left_to_its_default_is_checked_by_what_workers_publish(cli: CommandLine) -> None:
    """The example of its own help: the caller left `width` out, so the dead letter has none."""
    (dead,) = cli.dead_letters(type="resize", payload=b'{"url":"a"}')
    change = ("dead", "replay", dead, "--set")
    line = is_one_line(cli.run(*change, "args.width=200"), 1)
    assert f"args.width: task {dead} was enqueued without width, and no running worker publishes the signature" in line
    assert line.endswith("use --app module:app, or start a worker that declares it\n")
    cli.announce(types=("resize",))
    width = DeclaredParameter("width", kinds=("integer",))
    cli.publish(DeclaredType(name="resize", queue="q", parameters=(DeclaredParameter("url", required=True), width)))
    assert "resize(): width: expected integer, got string" in is_one_line(cli.run(*change, "args.width=wide"), 1)
    assert "resize(): unknown argument 'hight'" in is_one_line(cli.run(*change, "args.hight=1"), 1)
    (new,) = cli.json(*change, "args.width=200")
    assert shown(cli, new["task_id"])["arguments"] == {"url": "a", "width": 200}


def test_what_is_published_of_any_arguments_checks_nothing(cli: CommandLine) -> None:
    (dead,) = cli.dead_letters(payload=b'{"*args":[1]}')
    cli.announce()
    cli.publish(DeclaredType(name="add", queue="q", parameters=(DeclaredParameter("*args"),)))
    (new,) = cli.json("dead", "replay", dead, "--set", "args.*args=[2]")
    assert shown(cli, new["task_id"])["arguments"] == {"*args": [2]}


def test_set_goes_with_ids_only(cli: CommandLine) -> None:
    (dead,) = cli.dead_letters()
    assert "not with --all" in is_one_line(cli.run("dead", "replay", "--all", "--yes", "--set", "args.a=1"), 2)
    assert "--app goes with --set" in is_one_line(cli.run("dead", "replay", dead, "--app", "m:a"), 2)


def test_a_dead_letter_that_was_replayed_meanwhile_runs_once(cli: CommandLine) -> None:
    (dead,) = cli.dead_letters()

    class Meanwhile:
        """A store on which another caller is faster between the two calls."""

        def __init__(self, inner: Store) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        async def enqueue(self, tasks: Any) -> Any:
            await self.inner.apply([lifecycle.replay(dead)])
            return await self.inner.enqueue(tasks)

    async def replay(store: Store) -> None:
        faster: Any = Meanwhile(store)
        await replay_changed(faster, dead, {"a": 2}, lambda _: "f" * 32)

    with pytest.raises(Refused, match="meanwhile"):
        cli.store(replay)
    assert (shown(cli, dead)["state"], shown(cli, "f" * 32)["state"]) == ("ready", "cancelled")


def test_a_protected_task_is_copied_with_its_keys(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    key = base64.b64encode(bytes(32)).decode()
    monkeypatch.setenv("HOLDFAST_KEYS", f"sign:one={key},encrypt:one={key}")
    cli.ok("enqueue", "add", "--force", "--args", '{"a": 1}')
    (task,) = cli.claim()
    cli.settle(failed(task, Failure("E", "no"), retryable=False))
    (again,) = cli.json("tasks", "rerun", task.task_id)
    (changed,) = cli.json("dead", "replay", task.task_id, "--set", "args.a=2")
    promote(cli)
    crypto = crypto_of(None, None, MAX_BYTES)
    assert crypto is not None
    opened = {each.task_id: crypto.opened(each) for each in cli.claim(5)}
    assert opened == {again["task_id"]: b'{"a":1}', changed["task_id"]: b'{"a":2}'}


def test_what_others_signed_is_not_signed_again(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    (forged,) = cli.dead_letters(headers={"holdfast-signature": "v1.one.1.abc"})
    key = base64.b64encode(bytes(32)).decode()
    monkeypatch.setenv("HOLDFAST_KEYS", f"sign:one={key}")
    assert "does not fit" in is_one_line(cli.run("tasks", "rerun", forged), 1)
    assert len(cli.json("tasks", "ls")["tasks"]) == 1


def test_a_protected_task_is_not_copied_without_keys(cli: CommandLine) -> None:
    (forged,) = cli.dead_letters(headers={"holdfast-signature": "v1.k.1.abc"}, payload=b'{"a":1}')
    (encrypted,) = cli.dead_letters(payload=b'{"holdfast:encrypted":"v1.k.abc"}')
    for command in (("tasks", "rerun", forged), ("dead", "replay", forged, "--set", "args.a=2")):
        assert "is signed: give --app" in is_one_line(cli.run(*command), 1)
    assert "is encrypted: give --app" in is_one_line(cli.run("dead", "replay", encrypted, "--set", "args.a=2"), 1)


# -- purge ---------------------------------------------------------------------------------------------------


def test_purge_cancels_what_waits_and_leaves_what_runs(any_cli: CommandLine) -> None:
    waiting = any_cli.enqueue(3, queue="mail") + any_cli.enqueue(queue="mail", delay_ms=HOUR_MS)
    (other,) = any_cli.enqueue()
    (running,) = any_cli.claim(queue="mail")
    assert any_cli.ok("queues", "purge", "mail", "--dry-run") == "would cancel 3 waiting tasks of queue mail\n"
    assert any_cli.json("queues", "purge", "mail", "--yes") == {"queue": "mail", "matched": 3, "cancelled": 3}
    states = {each: shown(any_cli, each)["state"] for each in [*waiting, other]}
    assert states.pop(running.task_id) == "claimed"
    assert states.pop(other) == "ready"
    assert set(states.values()) == {"cancelled"}
    assert shown(any_cli, running.task_id)["cancel_requested"] is False


def test_purge_does_not_stop_a_task_that_was_claimed_meanwhile(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue()
    claimed = asyncio.run(_claimed_in_between(cli))
    assert claimed.changed == 0
    task = shown(cli, task_id)
    assert (task["state"], task["cancel_requested"]) == ("claimed", False)


async def _claimed_in_between(cli: CommandLine) -> actions.BulkResult:
    store = open_store(cli.url)

    class Slow:
        """A store from which a worker claims between the search and the change."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def find(self, query: Query) -> Any:
            page = await store.find(query)
            await asyncio.to_thread(cli.claim)
            return page

    slow: Any = Slow()
    try:
        return await actions.purge(slow, Query(queue="default"), "test", limit=10)
    finally:
        await store.close()


def test_purge_narrows_and_asks(cli: CommandLine) -> None:
    cli.enqueue(2, queue="mail", type="a")
    cli.enqueue(1, queue="mail", type="b", delay_ms=HOUR_MS)
    is_one_line(cli.run("queues", "purge", "mail"), 2)
    assert cli.json("queues", "purge", "mail", "--type", "a", "--limit", "1", "--yes")["cancelled"] == 1
    assert cli.json("queues", "purge", "mail", "--state", "scheduled", "--yes")["cancelled"] == 1
    assert [row["ready"] for row in cli.rows("queues", "ls")] == ["1"]


# -- names of queues -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [("pause", "mial"), ("resume", "mial"), ("order", "mial", "strict"), ("purge", "mial", "--yes")]
)
def test_a_mistyped_queue_is_refused_with_a_suggestion(cli: CommandLine, command: tuple[str, ...]) -> None:
    cli.enqueue(queue="mail")
    assert "no queue mial" in (said := is_one_line(cli.run("queues", *command), 2))
    assert "did you mean mail?" in said
    assert [row["queue"] for row in cli.rows("queues", "ls")] == ["mail"]


def test_a_queue_can_be_paused_before_its_first_task(cli: CommandLine) -> None:
    cli.enqueue()
    assert cli.ok("queues", "pause", "mail", "--create") == "queue mail is paused\n"
    assert cli.ok("queues", "resume", "mail") == "queue mail is running\n"
