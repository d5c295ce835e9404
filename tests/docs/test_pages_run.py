"""Every marked block of the README and the docs runs, page by page, as a reader would type it."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks, failures, lines, shows
from tests.support import ROOT, environment, eventually

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_BLOCKS = [page for page in PAGES if blocks(page)]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name != "running.py"]
TIMEOUT_S = 120
#: Of the terminal at which a reader sits.
ROWS, COLUMNS = 50, 130
BACKGROUND = "background.txt"
#: What a worker logs of a task that is meant to fail.
DEAD_LETTER = re.compile(r"holdfast\.task: .* dead-lettered .*\nTraceback ")


def reader_environment() -> dict[str, str]:
    """What a reader has: `holdfast` and `python` of the environment in which it was installed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # The pytest plugin, also where Holdfast was installed before it had one.
    plugin = {"PYTEST_ADDOPTS": "-p no:holdfast -p holdfast.testing.plugin -p no:cacheprovider"}
    return {**environment(more={"PATH": path}), "PYTHONPATH": "", **plugin}


def bash(code: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=reader_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in DEAD_LETTER.sub("", done.stderr), f"{code}\n{done.stderr}"
    return done.stdout


def at_terminal(command: str, folder: Path) -> str:
    """What a reader sees, errors included."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env={**reader_environment(), "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": str(COLUMNS)},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    printed = b""
    try:
        while chunk := os.read(ours, 65_536):
            printed += chunk
    except OSError:  # a terminal whose last writer is gone
        pass
    finally:
        os.close(ours)
        process.wait(TIMEOUT_S)
    return printed.decode().replace("\r\n", "\n")


def difference(command: str, printed: list[str], wanted: list[str]) -> str:
    return "\n".join([command, "PRINTED", *printed, "AND NOT", *wanted])


def follow_console(block: Block, folder: Path) -> None:
    """Types the commands, and compares what they print."""
    for command, expected in block.steps():
        seen: list[list[str]] = [[]]
        wanted = lines("\n".join(expected))

        def fits(command: str = command, wanted: list[str] = wanted, seen: list[list[str]] = seen) -> bool:
            seen[0] = lines(at_terminal(command, folder), folder)
            return shows(seen[0], wanted)

        if not fits() and block.detail == "eventually":
            with suppress(AssertionError):
                eventually(fits, timeout=30)
        assert shows(seen[0], wanted), difference(command, seen[0], wanted)


def follow_log(block: Block, folder: Path) -> None:
    """Waits until the background command has printed these lines, in order, whatever is between them."""
    wanted = lines(block.code)
    spread = [each for line in wanted for each in ("...", line)] + ["..."]

    def printed() -> list[str]:
        return lines((folder / BACKGROUND).read_text(), folder)

    with suppress(AssertionError):
        eventually(lambda: shows(printed(), spread), timeout=30)
    assert shows(printed(), spread), difference("the background command", printed(), wanted)


@contextmanager
def in_background(code: str, folder: Path) -> Iterator[None]:
    with (folder / BACKGROUND).open("a") as log:
        before = log.tell()
        process = subprocess.Popen(
            ["bash", "-c", f"exec {code}"], cwd=folder, env=reader_environment(), stdout=log, stderr=log
        )
    try:
        if "holdfast worker" in code:  # as a reader does, who sees it before anything else is typed
            eventually(lambda: ": ready\n" in (folder / BACKGROUND).read_text()[before:], 60, "the worker is ready")
        yield
        assert process.poll() is None, (folder / BACKGROUND).read_text()
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def check_failures(printed: str, folder: Path, page: list[Block]) -> None:
    """Every failed attempt and dead letter in the output of a worker must be in a `log` block of the page."""
    shown = {each for block in page if block.kind == "log" for each in failures(block.code)}
    unshown = failures(printed, folder) - shown
    assert not unshown, f"no log block of the page shows these failures: {sorted(unshown)}\n{printed}"


def follow(block: Block, folder: Path, stack: ExitStack) -> None:
    match block.kind, block.detail.partition(" ")[0]:
        case "file", _:
            path = folder / block.detail
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        case "console", _:
            follow_console(block, folder)
        case "log", _:
            follow_log(block, folder)
        case "run", _:
            (folder / "block.py").write_text(block.code)
            bash("python -W error block.py", folder)
        case "shell", "background":
            stack.enter_context(in_background(block.code, folder))
        case "shell", "prints":
            assert block.detail.partition(" ")[2] in bash(block.code, folder)
        case "shell", "eventually":
            wanted = block.detail.partition(" ")[2]
            eventually(lambda: wanted in bash(block.code, folder), timeout=30, what=f"{block.code} shows {wanted}")
        case _:
            bash(block.code, folder)


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_the_page_run_in_order(page: Path, tmp_path: Path) -> None:
    written = blocks(page)
    with ExitStack() as stack:
        for block in written:
            follow(block, tmp_path, stack)
    if (tmp_path / BACKGROUND).exists():
        check_failures((tmp_path / BACKGROUND).read_text(), tmp_path, written)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    output = bash(f"export HOLDFAST_URL=sqlite:///{tmp_path}/example.db; python -W error {example}", tmp_path)
    assert output.strip()


def test_pages_with_blocks_were_found() -> None:
    assert {page.name for page in WITH_BLOCKS} >= {"README.md", "quickstart.md", "api.md", "testing.md"}


def test_every_python_block_is_run_or_is_plain_text() -> None:
    for page in PAGES:
        fences = page.read_text(encoding="utf-8").count("\n```python\n")
        marked = sum(block.kind in ("file", "run") for block in blocks(page))
        # The import line at the top of the API page stands alone.
        assert fences - marked <= (page.name == "api.md"), page


TYPED = [ROOT / "docs" / name for name in ("quickstart.md", "tutorial.md", "testing.md")]
HOW_TO = [*TYPED, *sorted((ROOT / "docs" / "how-to").glob("*.md"))]


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.name)
def test_every_command_of_a_how_to_page_is_typed(page: Path) -> None:
    """A command that cannot run here (a container, a service manager) is in a block of plain text."""
    text = page.read_text(encoding="utf-8")
    fences = sum(text.count(f"\n```{kind}\n") for kind in ("sh", "console", "bash"))
    assert fences == sum(block.kind in ("shell", "console") for block in blocks(page))


@pytest.mark.parametrize(
    ("logged", "failed"),
    [
        ("attempt 1/5 failed: KeyError: 'tick' (retry in 26s)", "KeyError: 'tick'"),
        ("attempt 2/5 timed out: ran longer than its time limit of 5s (retry in 1m)", "ran longer than its time limit"),
        ("attempt 1/5 lost: the child process (pid 7) was killed (ready to run again)", "the child process (pid 7)"),
        ("dead-lettered after attempt 3/3: ValueError: never (works)", "ValueError: never (works)"),
        ("dead-lettered after attempt 1/5 (not retryable): BadResult: charge(): no", "BadResult: charge(): no"),
        ("not started: BadArguments: resize(): no (retry in 18s, no attempt used)", "BadArguments: resize(): no"),
        ("succeeded in 2ms", None),
        ("attempt 1/5 failed: KeyError: 'known' (retry in 26s)", None),
    ],
)
def test_a_failure_that_no_log_block_of_the_page_shows_fails_it(
    logged: str, failed: str | None, tmp_path: Path
) -> None:
    line = "2026-01-31 09:00:00,123 WARNING holdfast.task: charge[01a1e57c6d11000000004eb6a50f549d]"
    page = [Block("log", "", f"{line} dead-lettered after attempt 5/5: KeyError: 'known'\n")]
    with pytest.raises(AssertionError, match=re.escape(failed)) if failed else nullcontext():
        check_failures(f"{line} {logged}\n", tmp_path, page)


@pytest.mark.parametrize(
    ("printed", "expected", "fits"),
    [
        ("done in 12ms", "done in 3s", True),
        ("task 01a1e57c6d11000000004eb6a50f549d", "task 01a1e57c", True),
        ("a\nb\nc", "a\n...", True),
        ("a\nb\nc", "a\n...\nd", False),
        ("state ready", "state succeeded", False),
        ("3 tasks", "4 tasks", False),
    ],
)
def test_outputs_are_compared_by_what_is_the_same_each_time(printed: str, expected: str, fits: bool) -> None:
    assert shows(lines(printed), lines(expected)) is fits
