"""The docs, every help text, the source, examples and deployments use the words of `words.toml`, and coin none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import words
from tests.docs.words import NAMES, PROSE, Finding
from tests.support import ROOT

COMMAND = ".venv/bin/python -m tests.docs.words"


def shown(path: str, findings: list[Finding]) -> str:
    return "\n".join(f"{path}:{found.line}: {found.word} (use: {found.instead})" for found in findings)


def of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", words.PAGES, ids=of)
def test_a_page_has_no_banned_word(path: Path) -> None:
    assert not (found := words.in_page(path)), shown(of(path), found)


def test_no_help_has_a_banned_word() -> None:
    found = [shown(f"{path} --help", findings) for path, findings in words.in_help().items() if findings]
    assert not found, "\n".join(found)


def over(found: dict[str, list[Finding]], table: str) -> str:
    """The findings of the files that have more of them than they are allowed, as lines."""
    allowed = words.allowed(table)
    lines = [shown(path, findings) for path, findings in found.items() if len(findings) > allowed.get(path, 0)]
    return "\n".join([*lines, f"If you only moved these words from another file, run {COMMAND}"]) if lines else ""


def test_no_file_has_more_banned_words_than_it_is_allowed() -> None:
    found = {of(path): findings for path, findings in words.in_prose().items()}
    assert not (lines := over(found, PROSE)), lines


def test_no_public_name_has_a_coined_word_beyond_those_that_are_counted() -> None:
    assert not (lines := over({of(path): words.in_names(path) for path in words.sources()}, NAMES)), lines


@pytest.mark.parametrize("table", [PROSE, NAMES])
def test_no_allowance_is_larger_than_needed(table: str) -> None:
    counts = words.counted()[table]
    larger = {path: number for path, number in words.allowed(table).items() if number > counts.get(path, 0)}
    assert not larger, f"these files have fewer such words than words.toml counts: run {COMMAND}"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Whoever holds it", "Whoever"),
        ("it is kept for so\nlong", "so\nlong"),
        ("three\ngateways", "gateways"),
        ("the `gateway` deployment", None),
        ("--no-upkeep leaves it to workers", None),
        ("tickets and lanes-free", "lanes"),
    ],
)
def test_banned_words_are_found_outside_of_code(text: str, word: str | None) -> None:
    assert [found.word for found in words.in_text(text)] == ([] if word is None else [word])


def test_findings_in_a_page_and_a_module_have_their_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```python\nupkeep = 1  # the upkeep\n```\n[x](upkeep.md)\n\nNobody\n")
    assert [(found.line, found.word) for found in words.in_page(page)] == [(4, "upkeep"), (8, "Nobody")]
    module = tmp_path / "module.py"
    module.write_text('"""Mends it."""\n\nTICK = "tick"\n# a twin\nraise ValueError(f"{TICK}: the usual way")\n')
    assert [(found.line, found.word) for found in words.in_source(module)] == [(1, "Mends"), (4, "twin"), (5, "usual")]


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.sql", "SELECT twin -- a twin\n-- somebody\n", [1, 2]),
        ("a.lua", "local twin = 1\n-- nobody\n", [2]),
        ("alerts.yml", "summary: Nobody\n# the upkeep\n", [1, 2]),
    ],
)
def test_findings_in_other_files_have_their_lines(name: str, text: str, lines: list[int], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert [found.line for found in words.in_other(tmp_path / name)] == lines


def test_lanes_are_words_of_postgresql_only() -> None:
    schema = words.SOURCE / "stores" / "postgres" / "sql" / "schema.sql"
    assert "lane" in schema.read_text(encoding="utf-8")
    assert words.in_other(schema) == []


def test_coined_words_in_public_names_are_found(tmp_path: Path) -> None:
    module = tmp_path / "duties" / "__init__.py"
    module.parent.mkdir()
    module.write_text(
        "class UpkeepLoop:\n    def tick(self): ...\n    def _tick(self): ...\n\n\nTICKS_PER_DAY = _TICK = 1\n"
    )
    found = [(each.line, each.word) for each in words.in_names(module, tmp_path)]
    assert found == [(1, "duties"), (1, "UpkeepLoop"), (2, "tick"), (6, "TICKS_PER_DAY")]


def test_words_of_the_glossary_are_not_coined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "epoch" in words.glossary()
    module = tmp_path / "upkeep.py"
    module.write_text("")
    assert words.in_names(module, tmp_path)
    monkeypatch.setattr(words, "glossary", lambda: {"upkeep"})
    assert not words.in_names(module, tmp_path)
