"""The scripts: each with its contract, none with a state of its own."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from holdfast.core.lifecycle import TRANSITIONS
from holdfast.core.task import State
from holdfast.stores.redis.scripts import script

FOLDER = files("holdfast.stores.redis").joinpath("lua")
PARTS = {"common", "changes", "keeping", "recording", "scheduling"}
NAMES = sorted(entry.name.removesuffix(".lua") for entry in FOLDER.iterdir() if entry.name.endswith(".lua"))
SCRIPTS = [name for name in NAMES if name not in PARTS]
ADDS = {"enqueue", "tick"}
LOOKS_AT_ONE = {"document", "get", "get_map", "kept", "schedule"}
ONLY_LOOKS = LOOKS_AT_ONE | {"counts", "discards", "documents", "find", "schedules", "workers"}


def source(name: str) -> str:
    return FOLDER.joinpath(f"{name}.lua").read_text("utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_a_full_server_may_run(name: str) -> None:
    flags = "" if name in ADDS else " flags=no-writes" if name in ONLY_LOOKS else " flags=allow-oom"
    assert script(name).text.splitlines()[0] == f"#!lua{flags}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_states_its_arguments_and_its_reply(name: str) -> None:
    assert "-- ARGV: now" in source(name)
    assert "eply" in source(name) or name in {"pause", "set_step"}


@pytest.mark.parametrize("name", NAMES)
def test_no_script_spells_a_state(name: str) -> None:
    code = re.sub(r"--[^\n]*", "", source(name))
    assert not [state for state in State if f"'{state}'" in code or f'"{state}"' in code]


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_left_to_be_rendered(name: str) -> None:
    assert not re.findall(r"\{[a-z_]+\}", script(name).text)


def test_the_moves_are_those_of_the_table() -> None:
    text = script("apply").text
    for (state, event), to in TRANSITIONS.items():
        moves = re.search(rf"\b{event} = \{{([^}}]*)\}}", text)
        assert moves is not None
        assert f"{state} = '{to or 'gone'}'" in moves[1]
