"""The figures of docs/architecture.md are those that `scripts/house` counts, to within a few percent."""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType
from typing import Final

import pytest

from tests.support import ROOT

_TOLERANCE: Final = 0.05
#: The beginning of a row of the page, and of the line that the script prints. The ways take minutes to measure.
ROWS: Final = {
    "methods of the store contract": "methods of the store contract",
    "Python files that one contract method touches": "source files that one contract method touches",
    "Python files without kit, bench and demo": "Python files in src",
    "lines in them": "lines in them",
    "modules with a single importer": "modules with a single importer",
    "longest SQL function, lines": "longest SQL function, lines",
    "longest Lua file, lines": "longest Lua file, lines",
    "words of our own in names": "words of our own in names",
}


@pytest.fixture(scope="module")
def counted() -> dict[str, str]:
    """What the script counts, by the line that it prints."""
    return {line: value for line, value, _ in house()._counted()}


def house() -> ModuleType:
    """`scripts/house` as a module."""
    loader = SourceFileLoader("house", str(ROOT / "scripts" / "house"))
    spec = spec_from_loader("house", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def number(text: str) -> int:
    """The first number in it."""
    found = re.search(r"[0-9][0-9,]*", text)
    assert found is not None, text
    return int(found[0].replace(",", ""))


@pytest.mark.parametrize("row", ROWS)
def test_the_page_has_the_figure_of_the_script(row: str, counted: dict[str, str]) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (shown,) = re.findall(rf"^\| {row}[^|]*\| ([^|]+) \|", page, re.MULTILINE)
    (value,) = [value for line, value in counted.items() if line.startswith(ROWS[row])]
    assert abs(number(shown) - number(value)) <= _TOLERANCE * number(value), (
        f"{row}: the page says {shown}, not {value}"
    )
