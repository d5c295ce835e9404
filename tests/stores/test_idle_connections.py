"""Idle connections: the newest first, the unfit dropped, up to a limit, and none of a parent process in its child."""

from __future__ import annotations

import pytest

from holdfast.stores import connections
from holdfast.stores.connections import IdleByProcess, IdleConnections


def test_the_connection_used_last_is_taken_first() -> None:
    idle = IdleConnections(list[str]().append)
    idle.give_back("old")
    idle.give_back("new")
    assert [idle.take(), idle.take(), idle.take()] == ["new", "old", None]


def test_unfit_connections_are_dropped_on_the_way_to_a_fit_one() -> None:
    dropped: list[int] = []
    idle = IdleConnections(dropped.append)
    for number in range(4):
        idle.give_back(number)
    assert idle.take(lambda number: number < 2) == 1
    assert dropped == [3, 2]
    assert idle.take() == 0


def test_connections_over_the_limit_are_dropped() -> None:
    dropped: list[int] = []
    idle = IdleConnections(dropped.append, limit=2)
    for number in range(3):
        idle.give_back(number)
    assert dropped == [2]


def test_closing_drops_all_and_those_that_come_back_later() -> None:
    dropped: list[int] = []
    idle = IdleConnections(dropped.append)
    idle.give_back(1)
    idle.close()
    idle.give_back(2)
    assert dropped == [1, 2]
    assert idle.take() is None


def test_a_forked_child_neither_takes_nor_drops_what_its_parent_left(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[str] = []
    idle = IdleByProcess(dropped.append, 2)
    of_parent = idle.own()
    of_parent.give_back("parent's")
    monkeypatch.setattr(connections, "process", lambda: (1, 1))
    assert idle.own().take() is None
    of_parent.give_back("taken before the fork")
    idle.own().give_back("child's")
    idle.close()
    assert dropped == ["child's"]
