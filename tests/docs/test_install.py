"""What the pages, the messages and the Makefile say about installing Holdfast holds for this tree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("docs", "examples", "deploy", "src")
KINDS = {".md", ".py", ".sh", ".yml", ".yaml", ".toml", ".service"}
READ = [
    *ROOT.glob("*.md"),
    ROOT / "Makefile",
    *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS),
]
#: `pip install holdfast`, and not `pip install ./holdfast`: on an index, the name may be another project's.
_FROM_AN_INDEX = re.compile(r"(?:pip3?|uv|pipx|poetry|uvx) (?:pip )?(?:install|add|run)\b[^\n]*?[\s'\"]holdfast\b")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run: pip install 'holdfast[redis]'", True),
        ("pip install --upgrade holdfast", True),
        ("uv add holdfast", True),
        ("pip install './holdfast[redis]'", False),
        ("pip install ../holdfast", False),
    ],
)
def test_installing_from_an_index_is_found(text: str, found: bool) -> None:
    assert bool(_FROM_AN_INDEX.search(text)) is found


def test_nothing_installs_holdfast_from_an_index() -> None:
    said = {str(path.relative_to(ROOT)) for path in READ if _FROM_AN_INDEX.search(path.read_text(encoding="utf-8"))}
    assert said == set()


def test_every_extra_is_in_the_install_page() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert {name for name in PROJECT["project"]["optional-dependencies"] if f"\n| `{name}` |" not in page} == set()


def test_all_is_made_of_extras_that_exist() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (names,) = re.findall(r"^holdfast\[([a-z,]+)\]$", "\n".join(extras["all"]))
    assert set(names.split(",")) < set(extras)


def test_what_developers_need_is_a_group_and_not_published() -> None:
    assert "dev" not in PROJECT["project"]["optional-dependencies"]
    assert any(need.startswith("mkdocs") for need in PROJECT["dependency-groups"]["dev"])


def test_everything_that_is_installed_has_its_version_in_the_constraints() -> None:
    def canonical(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = Path(ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonical(line.partition("==")[0]) for line in lines}
    extras = PROJECT["project"]["optional-dependencies"]
    needs = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    needs += [need for name, extra in extras.items() for need in extra if name != "all"]
    names = {canonical(re.split(r"[\[<>=;! ]", need)[0]) for need in needs}
    assert names - pinned == set()
