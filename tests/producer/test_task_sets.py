"""Task types that a library declares, modules that an app includes, and the defaults of an app."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Retry, TaskSet, UsageError
from holdfast.errors import BadApp, BadName, BadOption
from holdfast.worker.loading import load_app

# -- task sets -----------------------------------------------------------------------------------------------


def make_tasks() -> tuple[TaskSet, Any]:
    tasks = TaskSet()

    @tasks.task(name="send", queue="mail", retry=Retry(max_attempts=2))
    def send(to: str) -> str:
        return f"sent to {to}"

    return tasks, send


def test_tasks_of_a_set_are_those_of_the_app_that_includes_it() -> None:
    tasks, send = make_tasks()
    with Holdfast("sqlite://", timeout="10s", result_ttl="2d") as app:
        app.include(tasks)
        assert app.task_types["send"] is send
        task = send.using(priority=3).enqueue("you").status()
        assert (task.type, task.queue, task.priority) == ("send", "mail", 3)
        policy = send.policy
        assert (policy.max_attempts, policy.timeout_ms, policy.result_ttl_ms) == (2, 10_000, 172_800_000)


def test_until_it_is_included_its_functions_can_only_be_called() -> None:
    _, send = make_tasks()
    assert send("you") == "sent to you"
    uses: list[Callable[[], Any]] = [
        lambda: send.enqueue("you"),
        lambda: send.prepare("you"),
        lambda: send.using(queue="other"),
        lambda: send.queue,
        lambda: asyncio.run(send.aenqueue("you")),
    ]
    for use in uses:
        with pytest.raises(UsageError, match=r"send is declared on a TaskSet that no app includes: call app.include"):
            use()


def test_a_task_that_is_declared_after_the_inclusion_belongs_to_the_app_too() -> None:
    tasks = TaskSet()
    with Holdfast("sqlite://", include=[tasks]) as app:

        @tasks.task(name="late")
        def late() -> None: ...

        assert app.task_types["late"] is late
        assert late.enqueue().status().queue == "default"


def test_a_set_is_included_once_and_in_one_app() -> None:
    tasks, _ = make_tasks()
    app = Holdfast("sqlite://")
    app.include(tasks)
    app.include(tasks)
    with pytest.raises(BadOption, match=r"this TaskSet \(send\) is included in Holdfast"):
        Holdfast("sqlite://").include(tasks)
    del app
    gc.collect()
    Holdfast("sqlite://").include(tasks)


def test_wrong_declarations_are_refused_where_they_are_made() -> None:
    tasks = TaskSet()
    with pytest.raises(BadName):
        tasks.task(queue="not a name!")
    with pytest.raises(BadOption, match="takes a function"):
        tasks.task("images")  # type: ignore[call-overload]
    with pytest.raises(BadOption, match="run: 'async' is refused"):
        tasks.task(name="send", run="async")(lambda: None)


def test_a_name_that_the_app_has_already_is_refused() -> None:
    tasks, _ = make_tasks()
    app = Holdfast("sqlite://")
    app.task(name="send")(lambda: None)
    with pytest.raises(BadName, match="'send' is declared twice"):
        app.include(tasks)


# -- modules -------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `shop_project` that can be imported, and is forgotten afterwards."""
    package = tmp_path / "shop_project"
    files = {
        "__init__.py": "",
        "app.py": "from holdfast import Holdfast\napp = Holdfast('sqlite://', include=['shop_project.mail'])\n",
        "mail.py": "from shop_project.app import app\n\n@app.task\ndef send(to: str) -> None: ...\n",
        "orders/__init__.py": "",
        "orders/tasks.py": "from holdfast import TaskSet\ntasks = TaskSet()\n\n@tasks.task\ndef ship() -> None: ...\n",
        "orders/exported.py": "from shop_project.orders.tasks import tasks\n",
        "stock/__init__.py": "",
        "broken.py": "import not_installed_anywhere\n",
    }
    for name, text in files.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop_project"]:
        del sys.modules[name]


@pytest.mark.usefixtures("project")
def test_a_worker_imports_the_modules_that_an_app_includes_which_may_import_it() -> None:
    assert set(load_app("shop_project.app:app").task_types) == {"shop_project.mail.send"}


@pytest.mark.usefixtures("project")
def test_discovery_imports_the_modules_that_are_there_and_includes_their_sets() -> None:
    app = Holdfast("sqlite://")
    app.discover("tasks", packages=["shop_project.orders", "shop_project.stock"])
    assert "shop_project.orders.tasks" not in sys.modules
    assert set(app.task_types) == {"shop_project.orders.tasks.ship"}
    assert app.declared_queues == ("default",)


INCLUSIONS: list[Callable[[Holdfast], None]] = [
    lambda app: app.include("shop_project.orders.tasks"),
    lambda app: app.include("shop_project.orders.exported"),
    lambda app: app.discover("tasks", packages=["shop_project.stock", "shop_project.orders"]),
]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("include", INCLUSIONS, ids=["by name", "by a module that imports the set", "discovered"])
def test_a_producer_enqueues_what_the_app_includes_by_the_name_of_a_module(include: Callable[[Holdfast], None]) -> None:
    with Holdfast("sqlite://", include=["shop_project.mail"]) as app:
        include(app)
        ship = importlib.import_module("shop_project.orders.tasks").ship
        assert ship.using(priority=3).enqueue().status().priority == 3
        assert ship.enqueue().status().type == "shop_project.orders.tasks.ship"
        assert app.task_types["shop_project.orders.tasks.ship"] is ship


@pytest.mark.usefixtures("project")
def test_a_producer_imports_no_more_than_the_module_of_the_task() -> None:
    with Holdfast("sqlite://", include=["shop_project.broken", "shop_project.orders.tasks"]):
        importlib.import_module("shop_project.orders.tasks").ship.enqueue()
        assert "shop_project.broken" not in sys.modules


@pytest.mark.usefixtures("project")
def test_threads_that_need_a_set_for_the_first_time_at_once_all_get_it() -> None:
    with Holdfast("sqlite://", include=["shop_project.orders.exported"]), ThreadPoolExecutor(8) as threads:
        ship = importlib.import_module("shop_project.orders.tasks").ship
        started = threading.Barrier(8)

        def prepare() -> str:
            started.wait(10)
            return str(ship.prepare().type)

        assert {each.result() for each in [threads.submit(prepare) for _ in range(8)]} == {ship.name}


@pytest.mark.usefixtures("project")
def test_a_module_that_cannot_be_imported_is_named_every_time() -> None:
    app = Holdfast("sqlite://", include=["shop_project.broken"])
    for _ in range(2):
        with pytest.raises(BadApp, match=r"include: cannot import 'shop_project.broken': Module.*anywhere"):
            _ = app.task_types


@pytest.mark.usefixtures("project")
def test_a_package_that_is_not_there_is_named() -> None:
    app = Holdfast("sqlite://")
    app.discover("tasks", packages=["shop_project.nothing"])
    with pytest.raises(BadApp, match=r"discover: there is no package 'shop_project.nothing'"):
        _ = app.task_types


def test_discovery_without_packages_asks_for_them_where_there_is_no_django(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "django.apps", None)  # other tests of this process may have set it up
    app = Holdfast("sqlite://")
    app.discover("tasks")
    with pytest.raises(BadApp, match=r"Django is not set up .*: app.discover\('tasks', packages="):
        _ = app.task_types


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Holdfast("sqlite://", include="proj.mail"), r"include takes a list, as in include=\['proj.mail'\]"),
        (lambda: Holdfast("sqlite://").include("proj/mail.py"), "is not a TaskSet or the name of a module"),
        (lambda: Holdfast("sqlite://").include(3), "is not a TaskSet or the name of a module"),  # type: ignore[arg-type]
        (lambda: Holdfast("sqlite://").discover("tasks", "proj"), r"packages takes a list of names"),
    ],
)
def test_what_cannot_be_included_is_refused_at_once(declare: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        declare()


# -- defaults of the app -------------------------------------------------------------------------------------


def test_limits_of_the_app_hold_for_every_type_that_does_not_say_otherwise() -> None:
    app = Holdfast("sqlite://", timeout="1m", hard_timeout="5m")
    usual = app.task(name="usual")(lambda: None).policy
    longer = app.task(name="longer", timeout="1h")(lambda: None).policy
    harder = app.task(name="harder", hard_timeout="2m")(lambda: None).policy
    assert (usual.timeout_ms, usual.hard_timeout_ms) == (60_000, 300_000)
    assert (longer.timeout_ms, longer.hard_timeout_ms) == (3_600_000, 3_630_000)
    assert (harder.timeout_ms, harder.hard_timeout_ms) == (60_000, 120_000)
    with pytest.raises(BadOption, match="hard_timeout: '30s' is shorter than the timeout of 1m"):
        app.task(name="wrong", hard_timeout="30s")


def test_an_app_may_run_its_tasks_in_processes_unless_a_type_says_otherwise() -> None:
    app = Holdfast("sqlite://", run="process")

    async def fetch() -> None: ...

    assert app.task(name="usual")(lambda: None).alone
    assert app.task(name="fetch")(fetch).alone
    assert not app.task(name="thread", run="thread")(lambda: None).alone
    assert not app.task(name="async", run="async")(fetch).alone
    with pytest.raises(BadOption, match="run: 'thread' cannot be the default of an app"):
        Holdfast("sqlite://", run="thread")  # type: ignore[arg-type]
