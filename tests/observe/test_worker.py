"""A real worker, scraped and traced."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Holdfast
from holdfast.core.task import FINAL_STATES, State
from holdfast.observe.metrics import METRICS, MetricKind
from tests.observe.app import CANARY
from tests.observe.spans import read_spans
from tests.support import PYTHONPATH, WorkerProcess, eventually, run_worker

APP = "tests.observe.app:app"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


@pytest.fixture
def producer(url: str) -> Iterator[Holdfast]:
    with Holdfast(url) as app:
        yield app


def get(port: int, path: str, accept: str = "") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def port_of(worker: WorkerProcess) -> int:
    found = eventually(lambda: re.search(r"health: http://127\.0\.0\.1:(\d+)/", worker.output()), 20)
    assert found is not None
    return int(found[1])


def scrape(port: int) -> Samples:
    status, content_type, text = get(port, "/metrics")
    assert (status, content_type.partition(";")[0]) == (200, "text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0)


def send(producer: Holdfast, name: str, queue: str = "default", *, count: int = 1, **arguments: Any) -> list[str]:
    """Records tasks of the app's types, by the way that a client without its code has."""
    from tests.observe.app import app

    task_type = app.task_types[name]
    calls = [task_type.using(queue=queue).prepare(**arguments) for _ in range(count)]
    return [handle.task_id for handle in producer.enqueue_many(calls)]


def all_ended(producer: Holdfast, task_ids: list[str]) -> bool:
    return all(producer.handle(task_id).status().state in FINAL_STATES for task_id in task_ids)


def test_a_scrape_tells_what_the_worker_has_done(producer: Holdfast, url: str) -> None:
    ids = [
        *send(producer, "quick", count=200, number=1),
        *send(producer, "parent", "mails", count=3, number=2),
        *send(producer, "fails", count=4, secret="argument-9d1c"),
        *send(producer, "later"),
        *send(producer, "stops"),
    ]
    with run_worker(APP, url, "--queues", "default,mails", "--health", "0") as worker:
        port = port_of(worker)
        eventually(lambda: all_ended(producer, ids), 30)

        def ended(type_name: str, outcome: str, queue: str = "default") -> float:
            return value(scrape(port), "holdfast_runs_ended_total", queue=queue, type=type_name, outcome=outcome)

        eventually(lambda: ended("quick", "succeeded") == 203, 20)
        eventually(lambda: ended("fails", "dead_lettered") == 4, 20)
        eventually(lambda: ended("later", "succeeded") == 1, 20)
        samples = scrape(port)
        text = get(port, "/metrics")[2]
        openmetrics = get(port, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert ended_in(samples) == {
        ("quick", "succeeded"): 203,
        ("parent", "succeeded"): 3,
        ("fails", "retried"): 4,
        ("fails", "dead_lettered"): 4,
        ("later", "snoozed"): 1,
        ("later", "succeeded"): 1,
        ("stops", "cancelled"): 1,
    }
    of_fails = {"queue": "default", "type": "fails"}
    assert value(samples, "holdfast_runs_started_total", **of_fails) == 8
    assert value(samples, "holdfast_run_seconds_count", **of_fails) == 8
    assert value(samples, "holdfast_run_seconds_bucket", **of_fails, le="+Inf") == 8
    assert value(samples, "holdfast_wait_seconds_count", **of_fails) == 8
    assert value(samples, "holdfast_tasks_enqueued_total", queue="default", type="quick") == 3
    assert value(samples, "holdfast_worker_children") == 1
    assert value(samples, "holdfast_worker_slots", state="free") == 50
    assert value(samples, "holdfast_maintenance_partitions") == 1
    assert value(samples, "holdfast_store_up") == 1
    assert value(samples, "holdfast_queue_tasks", queue="default", state="dead_lettered") in (0, 1, 2, 3, 4)
    assert value(samples, "holdfast_workers", status="running") == 1
    assert value(samples, "holdfast_store_seconds_count", method="reserve") >= 1
    assert CANARY not in text
    assert "argument-9d1c" not in text
    assert not [task_id for task_id in ids if task_id in text]
    assert openmetrics[1].startswith("application/openmetrics-text")
    assert openmetrics[2].endswith("# EOF\n")
    known = {metric.name for metric in METRICS} | {
        metric.name.removesuffix("_total") for metric in METRICS if metric.kind is MetricKind.COUNTER
    }
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} <= known


def ended_in(samples: Samples) -> dict[tuple[str, str], float]:
    found = {
        (dict(labels)["type"], dict(labels)["outcome"]): number
        for (name, labels), number in samples.items()
        if name == "holdfast_runs_ended_total"
    }
    return {key: number for key, number in found.items() if number}


def test_a_child_that_dies_is_counted_by_its_supervisor(producer: Holdfast, url: str) -> None:
    ids = send(producer, "dies")
    with run_worker(APP, url, "--health", "0") as worker:
        port = port_of(worker)
        eventually(lambda: all_ended(producer, ids), 30)
        eventually(lambda: value(scrape(port), "holdfast_claims_lost_total", cause="worker_lost") == 1, 20)
        assert value(scrape(port), "holdfast_claims_lost_total", cause="lease_expired") == 0
    assert producer.handle(ids[0]).status().state is State.DEAD_LETTERED


def test_without_the_package_nothing_is_counted_and_the_answer_says_what_to_install(
    producer: Holdfast, url: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'prometheus_client' else find(name, *more)\n"
    )
    ids = send(producer, "quick", number=1)
    with run_worker(APP, url, "--health", "0", env={"PYTHONPATH": f"{tmp_path}:{PYTHONPATH}"}) as worker:
        port = port_of(worker)
        eventually(lambda: all_ended(producer, ids), 30)
        status, _, text = get(port, "/metrics")
    assert status == 501
    assert json.loads(text)["reason"] == "metrics need prometheus-client: pip install prometheus-client"


# -- traces --------------------------------------------------------------------------------------------------

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


def traced(producer: Holdfast, url: str, tmp_path: Path, **env: str) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """The spans by name, in order, and the log lines, of a worker that runs `parent` and what that enqueues."""
    from tests.observe.app import app

    target = tmp_path / "spans.jsonl"
    call = app.task_types["parent"].using(headers=HEADERS).prepare(number=1)
    failing = app.task_types["fails"].prepare(secret="argument-9d1c")
    handles = [producer.enqueue_many([call])[0], producer.enqueue_many([failing])[0]]
    options = ("--queues", "default,mails", "--log-format", "json")
    with run_worker(APP, url, *options, env={"SPANS": str(target), **env}) as worker:
        eventually(lambda: all_ended(producer, [handle.task_id for handle in handles]), 30)
        second = producer.handle(handles[0].task_id).status().result
        eventually(lambda: all_ended(producer, [second]), 30)
        assert worker.stop() == 0
        lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
    assert CANARY not in target.read_text()
    assert "argument-9d1c" not in target.read_text()
    spans = read_spans(target)
    return {span["name"]: span for span in spans}, spans, lines


def test_a_trace_goes_from_enqueue_through_run_to_what_the_run_enqueues(
    producer: Holdfast, url: str, tmp_path: Path
) -> None:
    by_name, spans, lines = traced(producer, url, tmp_path)
    parent = by_name["process mails"]
    assert (parent["links"], parent["parent"]) == ([SPAN], None)
    assert parent["trace"] != TRACE
    assert by_name["send default"]["parent"] == parent["span"]
    (second,) = [
        span
        for span in spans
        if span["name"] == "process default" and span["attributes"]["holdfast.task.type"] == "quick"
    ]
    assert second["links"] == [by_name["send default"]["span"]]
    assert second["attributes"]["messaging.message.id"] == by_name["send default"]["attributes"]["messaging.message.id"]
    failed = [span["attributes"] for span in spans if span["attributes"].get("error.type")]
    assert [(each["error.type"], each["holdfast.task.outcome"]) for each in failed] == [
        ("builtins.ValueError", "retried"),
        ("builtins.ValueError", "dead_lettered"),
    ]
    of_task = [line for line in lines if line["message"] in ("a line of the task", "a line of somebody else")]
    assert len(of_task) == 2
    assert {(line["task_id"], line["trace_id"]) for line in of_task} == {
        (parent["attributes"]["messaging.message.id"], parent["trace"])
    }


def test_by_option_the_run_is_a_child_of_the_enqueue(producer: Holdfast, url: str, tmp_path: Path) -> None:
    by_name, _, _ = traced(producer, url, tmp_path, BELOW="1")
    parent = by_name["process mails"]
    assert (parent["trace"], parent["parent"], parent["links"]) == (TRACE, SPAN, [])


def test_without_tracing_the_log_lines_have_the_trace_of_the_enqueue(producer: Holdfast, url: str) -> None:
    from tests.observe.app import app

    (handle,) = producer.enqueue_many([app.task_types["parent"].using(headers=HEADERS).prepare(number=1)])
    with run_worker(APP, url, "--queues", "mails", "--log-format", "json") as worker:
        eventually(lambda: all_ended(producer, [handle.task_id]), 30)
        assert worker.stop() == 0
        lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
    of_task = [line for line in lines if line["message"] == "a line of somebody else"]
    assert [(line["task_id"], line["trace_id"]) for line in of_task] == [(handle.task_id, TRACE)]
