"""What a program pays for: importing the package and declaring a task loads few modules."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import holdfast

#: Slow to import, and not needed before the first call of the store.
HEAVY = {
    "apsw",
    "asyncio",
    "cronsim",
    "concurrent.futures",
    "cryptography",
    "hashlib",
    "logging",
    "random",
    "redis",
    "rich",
    "socket",
    "ssl",
    "zoneinfo",
    "holdfast.admin",
    "holdfast.core.schedule",
    "holdfast.security.crypto",
    "holdfast.stores.contract",
    "holdfast.worker",
}
DECLARE = """
from holdfast import Holdfast
app = Holdfast("sqlite:///tasks.db", queue="images")

@app.task(timeout="5m")
def resize(url: str, width: int = 800) -> str:
    return url
"""
HELP = """
import contextlib, io
from holdfast.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(["--help"])
"""
#: How many modules there may be; a few more than today, so that a new heavy one is seen.
MOST = {DECLARE: 170, HELP: 170}


@pytest.mark.parametrize("code", [DECLARE, HELP], ids=["declare", "help"])
def test_heavy_modules_are_imported_only_when_they_are_needed(code: str) -> None:
    show = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}\n{show}"], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert sorted(HEAVY & set(loaded)) == []
    assert len(loaded) <= MOST[code], loaded


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    assert {name: getattr(holdfast, name) for name in holdfast.__all__}.keys() <= set(dir(holdfast))
    with pytest.raises(AttributeError, match=r"^module 'holdfast' has no attribute 'Celery'$"):
        holdfast.Celery  # type: ignore[attr-defined]  # noqa: B018
