"""SQL lives in files: named blocks, with the state names rendered in as literals when they are loaded."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

from holdfast.core.task import State

_BLOCK = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_LITERALS = {state.value: f"'{state.value}'" for state in State}


def render(text: str, **more: str) -> str:
    """The text with `{ready}` and its kin replaced by literals, and `more` by what is given."""
    for name, literal in {**more, **_LITERALS}.items():
        text = text.replace("{" + name + "}", literal)
    return text


def load_statements(package: str, *names: str, **more: str) -> dict[str, str]:
    """All named blocks of these .sql files of a package, by name; `more` as in `render`."""
    statements: dict[str, str] = {}
    for name in names:
        parts = _BLOCK.split(files(package).joinpath("sql", name).read_text("utf-8"))
        blocks = zip(parts[1::2], parts[2::2], strict=True)
        statements.update({key: render(_bare(body), **more) for key, body in blocks})
    return statements


def _bare(body: str) -> str:
    """Without comments: the text is the key of the driver's statement cache, and is hashed at each call."""
    return re.sub(r"\s*--[^\n]*", "", body).strip()


def load_migrations(package: str) -> list[tuple[int, str, str]]:
    """The numbered migrations of a package: number, name, text."""
    folder = files(package).joinpath("sql", "migrations")
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=_entry_name)
    return [(int(entry.name[:4]), entry.name.removesuffix(".sql"), render(entry.read_text("utf-8"))) for entry in found]


def _entry_name(entry: Traversable) -> str:
    return entry.name
