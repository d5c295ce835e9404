"""The pytest plugin, in a project of its own that is tested with it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
#: As its entry point would load it, and one for async tests; no others, which take seconds to load.
PLUGIN = ("-p", "holdfast.testing.plugin", "-p", "anyio.pytest_plugin", "-p", "no:cacheprovider")

SHOP = """
from holdfast import Holdfast, Retry, current

app = Holdfast("redis://shop.invalid/0")  # no test reaches it

@app.lifespan
async def life():
    yield {"mailer": "smtp"}

@app.task(queue="mail", retry=Retry(max_attempts=3, base="1m", jitter=0))
def send(number: int) -> str:
    if current().attempt == 1:
        raise ConnectionError("mail server")
    return f"{current().state['mailer']} {number}"

@app.task
async def order(number: int) -> None:
    await send.aenqueue(number)

@app.task
def remind(number: int) -> None: ...

@app.every("1h")
def report() -> None: ...
"""

TESTS = """
import pytest
from holdfast.testing import arun_due, assert_enqueued, assert_not_enqueued, run_due
from shop import app, order, remind, report, send

def test_order(holdfast_test):
    handle = order.enqueue(7)
    assert [ran.type for ran in holdfast_test.run_due()] == ["shop.order", "shop.send"]
    (task,) = assert_enqueued(send, 7, queue="mail")
    assert task.state == "retry_pending"
    holdfast_test.advance("10m")
    assert app.handle(task.task_id).result() == "smtp 7"

def test_schedule(holdfast_test):
    assert [ran.type for ran in holdfast_test.advance("3h")] == ["shop.report"] * 3

def test_a_fresh_store_for_each_test(holdfast_test):
    assert_not_enqueued(order)
    assert_not_enqueued(send)

def test_eager(holdfast_eager):
    with pytest.raises(ConnectionError):
        send.enqueue(1)
    remind.using(delay="1d").enqueue(2)
    assert_enqueued(remind, 2, delay="1d", count=1)

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_async(holdfast_test):
    await order.aenqueue(7)
    assert len(await holdfast_test.arun_due()) == 2
    assert [ran.outcome for ran in await holdfast_test.aadvance("1m")] == ["succeeded"]
    assert_enqueued(send, 7)

@pytest.mark.anyio
async def test_async_eager(holdfast_eager):
    with pytest.raises(ConnectionError):
        await order.aenqueue(7) and await send.aenqueue(7)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(shop=SHOP, test_shop=TESTS)
    pytester.makeini("[pytest]\nholdfast_app = shop:app\n")
    return pytester


def test_a_project_is_tested_with_its_fixtures(project: pytest.Pytester) -> None:
    project.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=6)


def test_a_project_may_define_the_app_itself(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\n")
    project.makeconftest("import pytest\nfrom shop import app\n\n@pytest.fixture\ndef holdfast_app(): return app\n")
    project.runpytest_subprocess(*PLUGIN, "-k", "order or async").assert_outcomes(passed=3, deselected=3)


def test_without_an_app_the_error_says_what_to_set(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\n")
    result = project.runpytest_subprocess(*PLUGIN, "-k", "test_order")
    result.assert_outcomes(errors=1, deselected=5)
    result.stdout.fnmatch_lines(['*BadApp: which app? Set holdfast_app = "myproject.tasks:app"*'])


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name,) = project["entry-points"]["pytest11"].values()
    assert callable(import_module(name).pytest_addoption)


@pytest.mark.parametrize(
    ("module", "not_imported"),
    [
        ("holdfast.testing", ("pytest", "hypothesis", "holdfast.testing.kit", "django")),
        ("holdfast", ("holdfast.testing",)),
        ("holdfast.testing.plugin", ("holdfast.testing.worker", "holdfast.maintenance")),
    ],
)
def test_imports_stay_apart(module: str, not_imported: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {not_imported!r} if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout.strip() == "[]"
