"""Two applications written for Celery run on Holdfast, with their imports and one setting changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.contrib.celery.check import check_project
from tests.servers.urls import STORES, fresh_store
from tests.support import ROOT, environment, run_worker

SHOP = "tests.contrib.celery_apps.shop.celery:app"
FEEDS = "tests.contrib.celery_apps.feeds.tasks:celery"


@pytest.fixture(params=["sqlite", *(pytest.param(each, marks=pytest.mark.long) for each in STORES if each != "sqlite")])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_store(request.param, tmp_path)


def settings(folder: Path, store: str = "") -> dict[str, str]:
    project = {"DJANGO_SETTINGS_MODULE": "tests.contrib.celery_apps.shop.settings"}
    return {"CASE_FOLDER": str(folder), **project, **({"CASE_STORE": store} if store else {"CASE_EAGER": "1"})}


def script(folder: Path, source: str, store: str = "") -> Any:
    """What a script in its own process prints as JSON: settings of Django hold for a whole process."""
    begin = "import json, django; django.setup()\nfrom django.core.management import call_command\n"
    migrate = "" if (folder / "shop.db").exists() else "call_command('migrate', run_syncdb=True, verbosity=0)\n"
    ended = subprocess.run(
        [sys.executable, "-c", begin + migrate + source],
        env=environment(more=settings(folder, store)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


IMPORTS = """
from tests.contrib.celery_apps.shop.orders.models import Order, TaskRow, place_order
from tests.contrib.celery_apps.shop.orders.tasks import broken, clean_up, lost, pay, send_mail
from tests.contrib.celery_apps.shop.celery import app
"""

PRODUCE = """
for number in range(5):
    place_order(number)
try:
    with django.db.transaction.atomic():
        place_order(99)
        raise ValueError
except ValueError:
    pass
pay.apply_async((0,), task_id="own-1")
print(json.dumps({"broken": broken.delay(7).id, "lost": lost.delay(1).id}))
"""

FOLLOW = """
import time
ids = json.loads({ids!r})
assert app.AsyncResult(ids["lost"]).get(timeout=60) == 1
assert app.AsyncResult("own-1").get(timeout=60) == 0
try:
    app.AsyncResult(ids["broken"]).get(timeout=60)
except ValueError as error:
    failed = str(error)
until = time.monotonic() + 60
unfinished = TaskRow.objects.exclude(status__in=["SUCCESS", "FAILURE"])
while Order.objects.filter(mails__gte=1).count() < 5 or unfinished.all().exists():
    assert time.monotonic() < until, list(TaskRow.objects.values_list("name", "status"))
    time.sleep(0.05)
rows = TaskRow.objects.values_list("name", "status", "result")
print(json.dumps({{
    "paid": Order.objects.filter(paid=True).count(), "orders": Order.objects.count(), "failed": failed,
    "traceback": app.AsyncResult(ids["broken"]).traceback, "state": app.AsyncResult(ids["broken"]).state,
    "rows": sorted([name.rpartition(".")[2], status, result] for name, status, result in rows),
}}))
"""


def test_the_django_project_runs_on_a_worker(tmp_path: Path, store: str) -> None:
    ids = script(tmp_path, IMPORTS + PRODUCE, store)
    with run_worker(SHOP, store, "--cpu-processes", "2", env=settings(tmp_path, store)):
        found = script(tmp_path, IMPORTS + FOLLOW.format(ids=json.dumps(ids)), store)
    assert (found["paid"], found["orders"]) == (5, 5)
    assert found["failed"] == "number 7"
    assert found["state"] == "FAILURE"
    assert "ValueError: number 7" in found["traceback"]
    rows = found["rows"]
    assert [row for row in rows if row[0] == "broken"] == [["broken", "FAILURE", "number 7"]]
    assert [row for row in rows if row[0] == "lost"] == [["lost", "SUCCESS", "1"]]
    assert {tuple(row[1:]) for row in rows if row[0] == "send_mail"} == {("SUCCESS", "berlin mail")}
    assert len([row for row in rows if row[0] == "pay"]) == 6
    notes = (tmp_path / "notes.txt").read_text().splitlines()
    assert notes == ["broken 7", "on_failure broken number 7"], "an exception was repeated that Celery runs once"


def test_the_django_project_passes_its_eager_tests(tmp_path: Path) -> None:
    eager = """
place_order(1)
order = Order.objects.get()
try:
    broken.delay(1)
except ValueError as error:
    raised = str(error)
print(json.dumps([order.paid, order.mails, raised, clean_up.apply(kwargs={"days": 3}).get(), clean_up(4)]))
"""
    assert script(tmp_path, IMPORTS + eager) == [True, 1, "number 1", 3, 4]


FEED = """
from tests.contrib.celery_apps.feeds.tasks import celery, database, fetch, flask_app, give_up, slow, stuck
client = flask_app.test_client()
"""


def feed_script(folder: Path, source: str, store: str = "") -> Any:
    ended = subprocess.run(
        [sys.executable, "-c", "import json, time\n" + FEED + source],
        env={**environment(more=settings(folder, store)), "DJANGO_SETTINGS_MODULE": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_the_flask_service_runs_on_a_worker(tmp_path: Path, store: str) -> None:
    source = """
ids = [client.post(f"/feeds/{name}").json["id"] for name in ("a", "b", "c")]
values = [celery.AsyncResult(each).get(timeout=60) for each in ids]
answer = client.get(f"/results/{ids[0]}").json
try:
    give_up.delay().get(timeout=60)
except Exception as error:
    gave_up = f"{type(error).__name__}: {error}"
try:
    stuck.delay().get(timeout=60)
except Exception as error:
    killed = type(error).__name__
with flask_app.app_context():
    runs = database().execute("SELECT count(*) FROM entries WHERE name = 'stuck'").fetchone()[0]
retries = fetch.AsyncResult(ids[0]).retries
print(json.dumps([values, answer, gave_up, killed, runs, slow.delay().get(timeout=60), retries]))
"""
    env = {**settings(tmp_path, store), "DJANGO_SETTINGS_MODULE": ""}
    with run_worker(FEEDS, store, "--cpu-processes", "2", env=env):
        found = feed_script(tmp_path, source, store)
    answer = {"state": "SUCCESS", "ready": True, "value": 3}
    assert found == [[3, 3, 3], answer, "TooMany: for ever", "TimeLimitExceeded", 1, "cleaned up", 2]


def test_the_flask_service_passes_its_eager_tests(tmp_path: Path) -> None:
    source = """
first = fetch.delay("a")
failed = give_up.apply()
print(json.dumps([first.get(), first.state, failed.state, str(failed.result), fetch.delay("b").successful()]))
"""
    assert feed_script(tmp_path, source) == [3, "SUCCESS", "FAILURE", "for ever", True]


def test_nothing_is_refused_in_the_two_applications() -> None:
    for reference, folder in (("shop.celery:app", "shop"), ("feeds.tasks:celery", "feeds")):
        findings = check_project(reference, ROOT / "tests" / "contrib" / "celery_apps")
        assert [each for each in findings.refused if each.path.startswith(folder)] == []
