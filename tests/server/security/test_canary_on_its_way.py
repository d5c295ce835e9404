"""A secret on the way of a task, from a client through a server to workers: in none of what these processes tell.

Whoever holds `manage`, or the password of the store, sees the text of errors as it is; logs, metrics, traces and
whoever holds `read` do not.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.admin import tokens
from holdfast.cli.main import main
from holdfast.clock import SystemClock
from holdfast.errors import NotAllowed
from holdfast.stores.open import open_store
from tests.observe.spans import read_spans
from tests.remote.holdfast_server import holdfast_server
from tests.server.security.test_canary import CANARY, check_clean
from tests.server.setting import Client
from tests.servers.redis_server import RedisServer
from tests.support import WorkerProcess, eventually, run_worker

APP = "tests.server.security.apps.leaky:app"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "shop=1"}
QUEUES = ("far", "near")


async def new_tokens(store_url: str, *scopes: str) -> dict[str, str]:
    store = open_store(store_url)
    try:
        await store.migrate()
        now_ms = SystemClock().now_ms()
        return {scope: str(await tokens.create(store, [scope], now_ms=now_ms)) for scope in scopes}
    finally:
        await store.close()


class Rig:
    """A server on a store with a password, a worker through the server, and one at the store itself."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.store_url = stack.enter_context(RedisServer(password=CANARY)).url
        # Made before the server, which prints the first one on purpose.
        self.tokens = asyncio.run(new_tokens(self.store_url, "admin", "read"))
        loud = ("--log-level", "debug")
        self.server = stack.enter_context(holdfast_server(directory, self.store_url, *loud, "--log-format", "json"))
        self.spans = {queue: directory / f"{queue}.jsonl" for queue in QUEUES}
        options = {"far": ("--log-format", "json", *loud), "near": loud}
        urls = {"far": self.url("admin"), "near": self.store_url}
        self.workers = {
            queue: stack.enter_context(
                run_worker(
                    APP,
                    urls[queue],
                    *("--queues", queue, "--health", "0", *options[queue]),
                    env={"SPANS": str(self.spans[queue])},
                )
            )
            for queue in QUEUES
        }

    def url(self, scope: str) -> str:
        return f"http://{self.tokens[scope]}@127.0.0.1:{self.server.port}"

    def client(self, scope: str) -> Client:
        return Client(self.server.port, self.tokens[scope])

    def secrets(self) -> tuple[str, ...]:
        return tuple(token.split("_")[2] for token in self.tokens.values())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(tmp_path, stack)


def enqueue(client: Client, queue: str, task_type: str) -> str:
    body: dict[str, Any] = {
        "type": task_type,
        "arguments": {"password": CANARY},
        "headers": {"authorization": f"Bearer {CANARY}"},
    }
    body["retry"] = {"max_attempts": 1}
    answer = client.send("POST", f"/v1/queues/{queue}/tasks", body, TRACED)
    assert answer.status == 201, answer
    return str(answer.json["task_id"])


def ended(client: Client, task_id: str) -> bool:
    return bool(client.get(f"/v1/tasks/{task_id}?wait=5s")["state"] == "dead_lettered")


def metrics_of(worker: WorkerProcess) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+/", worker.output())
    assert found
    with urllib.request.urlopen(f"{found[0]}metrics", timeout=10) as answer:
        return str(answer.read().decode())


def command(*words: str, url: str) -> Result:
    """What `holdfast` answers to these words."""
    return CliRunner().invoke(main, [*words, "--url", url])


def shown_to_readers(rig: Rig, task_ids: list[str]) -> Iterator[str]:
    reader = rig.client("read")
    paths = ["/v1/tasks", "/v1/dead-letters", "/v1/dead-letters/by-error", "/v1/workers", "/metrics", "/openapi.json"]
    for task_id in task_ids:
        paths += [f"/v1/tasks/{task_id}{more}" for more in ("", "/history", "/why")]
    for path in paths:
        answer = reader.send("GET", path)
        assert answer.status == 200, answer
        yield answer.body.decode()
    reader.close()
    for words in (("tasks", "show", task_ids[0]), ("dead", "ls")):
        shown = command(*words, url=rig.url("read"))
        assert (shown.exit_code, shown.stdout != "") == (0, True), shown.output
        yield shown.output


def refusals(rig: Rig) -> Iterator[str]:
    """One line each, of commands that have the wrong password, a wrong token, or a token in the wrong place."""
    for words, url in (
        (("tasks", "ls"), rig.store_url.replace(CANARY, f"{CANARY}%20")),
        (("tasks", "ls"), f"http://hf_{'0' * 12}_{rig.secrets()[0]}@127.0.0.1:{rig.server.port}"),
        (("tasks", "show", rig.tokens["read"]), rig.url("read")),
    ):
        refused = command(*words, url=url)
        assert refused.exit_code in (1, 2), refused.output
        assert refused.output.count("\n") == 1, refused.output
        yield refused.output


def test_a_secret_is_in_nothing_that_the_processes_tell(rig: Rig) -> None:
    admin = rig.client("admin")
    kinds = [(queue, task_type) for queue in QUEUES for task_type in ("in_thread", "in_loop")]
    task_ids = [enqueue(admin, *kind) for kind in kinds]
    for task_id in task_ids:
        eventually(lambda task_id=task_id: ended(admin, task_id), 40)  # type: ignore[misc]
    assert CANARY in json.dumps(admin.get(f"/v1/tasks/{task_ids[0]}")), "the text of the error is kept"
    admin.close()
    told = [
        refused_producer(rig),
        *shown_to_readers(rig, task_ids),
        *refusals(rig),
        *map(metrics_of, rig.workers.values()),
    ]
    for worker in rig.workers.values():
        assert worker.stop() == 0
    told += [worker.output() for worker in rig.workers.values()]
    rig.server.stop()
    told.append(rig.server.log())
    told += [path.read_text() for path in rig.spans.values()]
    check_clean(told, *rig.secrets())
    for worker in rig.workers.values():
        check_that_all_was_said(worker.output())
    check_traces(rig, dict(zip(task_ids, kinds, strict=True)))


def check_that_all_was_said(output: str) -> None:
    """Else there would have been nothing to leave out."""
    for words in ("password=***", "Authorization: ***", "https://***@shop.example", "api_key=***", "thread side has"):
        assert output.count(words) >= 2, words
    assert output.count("cannot be formatted") >= 2
    assert output.count("password: *** is refused by postgresql://***@db/shop") >= 2


def check_traces(rig: Rig, kinds: dict[str, tuple[str, str]]) -> None:
    """The span of each run is below that of the client, and so are its log lines."""
    spans = [span for path in rig.spans.values() for span in read_spans(path)]
    runs = {span["attributes"]["messaging.message.id"]: span for span in spans if span["name"].startswith("process")}
    assert set(runs) == set(kinds)
    for span in runs.values():
        assert (span["trace"], span["parent"]) == (TRACE, SPAN)
        assert span["attributes"]["error.type"] == "builtins.ValueError"
        assert span["all"]["status"] == {"status_code": "ERROR"}
        assert span["all"]["events"] == []
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in rig.workers["far"].output().splitlines() if line.startswith("{")
    ]
    of_tasks = [line for line in lines if line["logger"] == "shop.auth"]
    assert {(line["task_id"], line["trace_id"]) for line in of_tasks} == {
        (task_id, TRACE) for task_id, (queue, _) in kinds.items() if queue == "far"
    }


def refused_producer(rig: Rig) -> str:
    """What a program of ours is told that may not enqueue."""
    with Holdfast(rig.url("read")) as app:
        task_type = app.task(name="in_loop")(lambda password: None)
        with pytest.raises(NotAllowed) as refused:
            task_type.enqueue(CANARY)
    return f"{refused.value} {refused.value!r}"
