"""Tasks by time, argument and the beginning of their id, each search with a bound."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.admin.search import PREFIX_LIMIT, Filter, Found, argument, every_match, search, whole_id
from holdfast.core.task import State, Task
from holdfast.errors import BadOption, UnknownTask
from holdfast.stores.contract import Query, Store
from tests.cli.conftest import CommandLine


def found(cli: CommandLine, given: Filter, **query: Any) -> Found:
    return cli.store(lambda store: search(store, Query(**query), given))


def ids(tasks: list[Task]) -> list[str]:
    return [task.task_id for task in tasks]


def test_arguments_narrow_and_each_match_is_met_once(any_cli: CommandLine) -> None:
    wanted = [any_cli.enqueue(payload=b'{"user":{"id":%d},"n":1}' % (n % 2))[0] for n in range(6)][1::2][::-1]
    odd = Filter(args={"user.id": 1})
    first = found(any_cli, odd, limit=2)
    assert ids(first.tasks) == wanted[:2]
    assert ids(found(any_cli, odd, limit=2, cursor=first.cursor).tasks) == wanted[2:]

    async def walk(store: Store) -> list[str]:
        return [task.task_id async for page in every_match(store, Query(), odd, 2) for task in page]

    assert any_cli.store(walk) == wanted[:2]


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("a=1", True),
        ("a=2", False),
        ("a=true", False),
        ("name=joe", True),
        ('name="joe"', True),
        ("tags.1=7", True),
        ("tags.2=7", False),
        ('tags=["x","7"]', True),
        ("missing=null", False),
        ("none=null", True),
    ],
)
def test_an_argument_is_compared_as_json(cli: CommandLine, text: str, matches: bool) -> None:
    cli.enqueue(payload=b'{"a":1,"name":"joe","tags":["x","7"],"none":null}')
    key, value = argument(text)
    assert bool(found(cli, Filter(args={key: value})).tasks) is matches


@pytest.mark.parametrize("text", ["", "a", "=1"])
def test_what_is_no_argument_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="key=value"):
        argument(text)


def test_times_narrow(any_cli: CommandLine) -> None:
    any_cli.enqueue(3)
    tasks = found(any_cli, Filter()).tasks
    newest_ms = tasks[0].created_at_ms
    assert ids(found(any_cli, Filter(since_ms=newest_ms)).tasks)[:1] == ids(tasks)[:1]
    assert found(any_cli, Filter(since_ms=newest_ms + 1)).tasks == []
    assert ids(found(any_cli, Filter(until_ms=newest_ms + 1)).tasks) == ids(tasks)
    assert found(any_cli, Filter(until_ms=tasks[-1].created_at_ms)).tasks == []


def test_dead_letters_are_searched_by_when_they_died(cli: CommandLine) -> None:
    (task_id,) = cli.dead_letters()
    cli.enqueue()
    (task,) = found(cli, Filter(), states=frozenset({State.DEAD_LETTERED})).tasks
    died_ms = task.finished_at_ms or 0
    assert ids(found(cli, Filter(since_ms=died_ms, time="finished")).tasks) == [task_id]
    assert found(cli, Filter(until_ms=died_ms, time="finished")).tasks == []


def test_a_search_ends_at_its_limit_and_goes_on_from_there(cli: CommandLine) -> None:
    (oldest, *_) = cli.enqueue(payload=b'{"a":2}'), *cli.enqueue(10)
    given = Filter(args={"a": 2})
    cut = cli.store(lambda store: search(store, Query(), given, scan_limit=5))
    assert (cut.tasks, cut.looked_at, cut.cut_short) == ([], 5, True)
    rest = cli.store(lambda store: search(store, Query(cursor=cut.cursor), given))
    assert (ids(rest.tasks), rest.cut_short) == (oldest, False)


def test_encrypted_arguments_are_counted_not_compared(cli: CommandLine) -> None:
    cli.enqueue(payload=b'{"holdfast:encrypted":"v1.k.abc"}')
    assert (found(cli, Filter(args={"holdfast:encrypted": "v1.k.abc"})).encrypted) == 1


# -- ids by their beginning ----------------------------------------------------------------------------------


def test_the_beginning_of_an_id_is_enough_if_only_one_begins_so(any_cli: CommandLine) -> None:
    first, second = any_cli.enqueue(2)

    def whole(text: str) -> str:
        return any_cli.store(lambda store: whole_id(store, text))

    common = next(n for n in range(32) if first[n] != second[n])
    assert whole(first[: common + 1]) == first
    assert whole(second[: common + 1].upper()) == second
    assert whole("0" * 32) == "0" * 32
    with pytest.raises(UnknownTask, match=f"several tasks begin with .*{first}.*write more digits"):
        whole(first[:common])
    with pytest.raises(UnknownTask, match="has an id that begins with abcdefabcdef"):
        whole("abcdefabcdef")
    with pytest.raises(UnknownTask, match="too short"):
        whole(first[:5])
    with pytest.raises(UnknownTask, match="is not a task_id"):
        whole("not-an-id")


def test_only_tasks_of_the_query_are_looked_at(cli: CommandLine) -> None:
    (dead,) = cli.dead_letters()
    (ready,) = cli.enqueue()
    query = Query(states=frozenset({State.DEAD_LETTERED}))
    assert cli.store(lambda store: whole_id(store, dead[:20], query)) == dead
    with pytest.raises(UnknownTask, match="no dead letter"):
        cli.store(lambda store: whole_id(store, ready[:20], query, "dead letter"))


def test_the_search_for_an_id_is_bounded_and_says_so(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.admin.search.PREFIX_LIMIT", 1_000)
    assert PREFIX_LIMIT > 1_000
    (oldest, *_) = cli.enqueue(), cli.enqueue(1_500)
    with pytest.raises(UnknownTask, match=r"newest 1,000 tasks .* write all 32 digits"):
        cli.store(lambda store: whole_id(store, oldest[0][:20]))
