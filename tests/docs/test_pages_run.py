"""Every marked block of the README and the docs runs, page by page, as a reader would type it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks
from tests.support import ROOT, environment, eventually

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_BLOCKS = [page for page in PAGES if blocks(page)]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name != "running.py"]
TIMEOUT_S = 120


def reader_environment() -> dict[str, str]:
    """What a reader has: `holdfast` and `python` of the environment in which it was installed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**environment(more={"PATH": path}), "PYTHONPATH": ""}


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
    assert "Traceback" not in done.stderr, f"{code}\n{done.stderr}"
    return done.stdout


@contextmanager
def in_background(code: str, folder: Path) -> Iterator[None]:
    with (folder / "background.txt").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {code}"], cwd=folder, env=reader_environment(), stdout=log, stderr=log
        )
    try:
        yield
        assert process.poll() is None, (folder / "background.txt").read_text()
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def follow(block: Block, folder: Path, stack: ExitStack) -> None:
    match block.kind, block.detail.partition(" ")[0]:
        case "file", _:
            (folder / block.detail).write_text(block.code)
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


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_the_page_run_in_order(page: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        for block in blocks(page):
            follow(block, tmp_path, stack)


@pytest.mark.slow
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
