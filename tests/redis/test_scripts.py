"""The scripts: each with its contract, none with a state of its own."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from holdfast.core.lifecycle import TRANSITIONS
from holdfast.core.task import State
from holdfast.stores.redis.keys import FIELDS
from holdfast.stores.redis.scripts import script

FOLDER = files("holdfast.stores.redis").joinpath("lua")
PARTS = {
    "changes",
    "claiming",
    "common",
    "document",
    "document_write",
    "effects",
    "indexes",
    "ranking",
    "tasks",
}
NAMES = sorted(entry.name.removesuffix(".lua") for entry in FOLDER.iterdir() if entry.name.endswith(".lua"))
SCRIPTS = [name for name in NAMES if name not in PARTS]
ADDS = {"enqueue", "enqueue_one", "put_tasks"}
ONLY_READS = {"counts", "documents", "find", "get", "permissions", "workers"}
#: A longer one is two things.
MAX_LINES = 120


def source(name: str) -> str:
    return FOLDER.joinpath(f"{name}.lua").read_text("utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_a_full_server_may_run(name: str) -> None:
    flags = "" if name in ADDS else " flags=no-writes" if name in ONLY_READS else " flags=allow-oom"
    assert script(name).text.splitlines()[0] == f"#!lua{flags}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_states_its_arguments_and_its_reply(name: str) -> None:
    assert "-- ARGV: now" in source(name)
    assert "Reply" in source(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_short(name: str) -> None:
    assert len(source(name).splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", NAMES)
def test_no_script_spells_a_state(name: str) -> None:
    code = re.sub(r"--[^\n]*", "", source(name))
    assert not [state for state in State if f"'{state}'" in code or f'"{state}"' in code]


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_left_to_be_rendered(name: str) -> None:
    assert not re.findall(r"\{[a-z_]+\}", script(name).text)


def test_the_fields_of_a_task_are_all_written_down() -> None:
    whole = "".join(source(name) for name in NAMES)
    calls = re.findall(r"\bcall\('H\w+', (?:task_key\(\S+\)|key), ([^\n]*)", whole)
    record = source("tasks")[source("tasks").index("local fields") :]
    quoted = {field for text in [*calls, record.split("redis.call")[0]] for field in re.findall(r"'([a-z])'", text)}
    # The short script for one task gets the names of optional fields along with their values.
    assert quoted == set(FIELDS)


def test_the_moves_are_those_of_the_table() -> None:
    text = script("apply").text
    for (state, event), to in TRANSITIONS.items():
        moves = re.search(rf"\b{event} = \{{([^}}]*)\}}", text)
        assert moves is not None
        assert f"{state} = '{to or 'gone'}'" in moves[1]
