"""A public class name exists once in the package, save those that are counted here: they become fewer, never more."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.docs.words import SOURCE

#: The kit, the bench and the demo are apart; a Celery app has the names of Celery.
APART: Final = ("testing", "bench", "demo", "contrib/celery")
#: The names that still exist more than once, and how often. Each means the same in each of its places, or is named
#: after an endpoint of its own API (`…Body`).
ALLOWED: Final = {
    "Address": 2,
    "Caller": 2,
    "CancelBody": 2,
    "Connection": 2,
    "Documents": 2,
    "ErrorBody": 2,
    "Failures": 3,
    "Listener": 2,
    "Route": 2,
    "Reserve": 2,
    "Session": 3,
    "TaskBody": 2,
    "Transaction": 2,
    "Waiters": 2,
    "Wakeups": 2,
}


def found(root: Path = SOURCE) -> dict[str, list[str]]:
    """The places of each public class name that exists more than once."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(tuple(f"{each}/" for each in APART)):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{name}:{node.lineno}")
    return {name: where for name, where in places.items() if len(where) > 1}


def test_a_public_class_name_exists_once() -> None:
    more = {name: where for name, where in found().items() if len(where) > ALLOWED.get(name, 1)}
    assert not more, f"give all but one of these another name: {more}"


def test_no_name_is_allowed_more_often_than_it_exists() -> None:
    counts = {name: len(where) for name, where in found().items()}
    larger = {name: count for name, count in ALLOWED.items() if count > counts.get(name, 1)}
    assert not larger, f"these names exist less often: lower their counts to {counts}"


def test_a_name_that_is_there_twice_is_found(tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("class Twice: ...\nclass _Private: ...\n")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "three.py").write_text("class Twice: ...\n")
    assert found(tmp_path) == {"Twice": ["one.py:1", "two.py:1"]}
