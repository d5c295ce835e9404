"""The SQL files: functions that can be read, all of them installed, each placeholder filled."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final, NamedTuple

from holdfast.stores.postgres.migrate import schema_text

MOST_LINES: Final = 60
MOST_PARAMETERS: Final = 8
_FUNCTION = re.compile(
    r"^CREATE OR REPLACE FUNCTION (\w+)\((.*?)\)\s*(?:RETURNS|LANGUAGE)\b.*?\n(?:END)?\s*\$\$;",
    re.MULTILINE | re.DOTALL,
)


class Function(NamedTuple):
    name: str
    lines: int
    parameters: int


def _functions(text: str) -> list[Function]:
    return [Function(found[1], found[0].count("\n") + 1, _parameters(found[2])) for found in _FUNCTION.finditer(text)]


def _parameters(text: str) -> int:
    return sum(not each.strip().startswith("OUT ") for each in text.split(",") if each.strip())


def test_functions_are_small() -> None:
    functions = _functions(schema_text("holdfast").functions)
    assert len(functions) == schema_text("holdfast").functions.count("CREATE OR REPLACE FUNCTION")
    too_large = [each for each in functions if each.lines > MOST_LINES or each.parameters > MOST_PARAMETERS]
    assert too_large == []


def test_every_file_is_installed_and_every_placeholder_filled() -> None:
    text = schema_text("holdfast")
    for file in files("holdfast.stores.postgres").joinpath("sql", "functions").iterdir():
        assert {each.name for each in _functions(file.read_text("utf-8"))} <= {
            each.name for each in _functions(text.functions)
        }
    assert re.findall(r"\{\w+\}", text.tables + text.functions) == []
