"""A type checker sees wrong arguments, wrong options and wrong results, and accepts the right ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SNIPPETS = Path(__file__).with_name("snippets")
ROOT = Path(__file__).resolve().parents[2]


#: Keeps `make check` from stumbling over the bad snippet; taken away before mypy reads it here.
IGNORE = "# mypy: ignore-errors"


Errors = dict[str, dict[int, str]]


def copied(directory: Path) -> list[str]:
    for snippet in SNIPPETS.glob("*.py"):
        (directory / snippet.name).write_text(snippet.read_text().replace(IGNORE, ""))
    return sorted(map(str, directory.glob("*.py")))


def errors_of_mypy(directory: Path) -> Errors:
    """The errors that mypy finds in each snippet, by line; one run, since each reads all of our own code."""
    copies = copied(directory)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={directory / 'cache'}"]
    done = subprocess.run([*command, *copies], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"checked {len(copies)} source files" in done.stdout, done.stdout
    found: Errors = {Path(copy).name: {} for copy in copies}
    for file, line, text in re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found[Path(file).name][int(line)] = text  # a KeyError is an error outside of the snippets
    return found


def errors_of_pyright(directory: Path) -> Errors:
    """The errors that pyright finds in each snippet, by line, in its standard mode."""
    copies = copied(directory)
    settings = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "standard", "reportMissingModuleSource": False}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(directory)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(copies), report["summary"]
    found: Errors = {Path(copy).name: {} for copy in copies}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            found[Path(each["file"]).name][each["range"]["start"]["line"] + 1] = each["message"]
    return found


@pytest.mark.parametrize("errors_of", [errors_of_mypy, errors_of_pyright], ids=["mypy", "pyright"])
def test_right_calls_are_accepted_and_every_wrong_line_is_refused(
    tmp_path: Path, errors_of: Callable[[Path], Errors]
) -> None:
    lines = (SNIPPETS / "bad.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# E:")}
    assert len(marked) >= 20
    found = errors_of(tmp_path)
    assert found["good.py"] == {}
    assert set(found["bad.py"]) == marked
