"""A type checker sees wrong arguments, wrong options and wrong results, and accepts the right ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SNIPPETS = Path(__file__).with_name("snippets")
ROOT = Path(__file__).resolve().parents[2]


#: Keeps `make check` from stumbling over the bad snippet; taken away before mypy reads it here.
IGNORE = "# mypy: ignore-errors"


def errors(snippet: str, directory: Path) -> dict[int, str]:
    """The errors that mypy finds in a snippet, by line."""
    copy = directory / snippet
    copy.write_text((SNIPPETS / snippet).read_text().replace(IGNORE, ""))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={directory / 'cache'}"]
    done = subprocess.run([*command, str(copy)], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "checked 1 source file" in done.stdout or "no issues found in 1 source file" in done.stdout, done.stdout
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert all(Path(file).name == snippet for file, _, _ in found), done.stdout
    return {int(line): text for _, line, text in found}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.slow
def test_right_calls_are_accepted_with_the_types_of_the_function(directory: Path) -> None:
    assert errors("good.py", directory) == {}


@pytest.mark.slow
def test_every_wrong_line_is_refused_and_no_other(directory: Path) -> None:
    lines = (SNIPPETS / "bad.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# E:")}
    assert len(marked) >= 20
    assert set(errors("bad.py", directory)) == marked
