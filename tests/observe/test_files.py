"""The board, the alerts and the docs speak of metrics, labels and label values that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.task import State
from holdfast.observe.metrics import METRICS, Metric, MetricKind
from holdfast.observe.runs import LOST, OUTCOMES
from tests.support import ROOT

BOARD = ROOT / "deploy" / "grafana" / "holdfast.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
SCRAPES = ROOT / "deploy" / "prometheus" / "prometheus.yml"
ALERTS_TEST = ROOT / "tests" / "observe" / "alerts_test.yml"
PAGE = ROOT / "docs" / "observability.md"

#: What Prometheus itself adds.
ADDED = {"instance", "job", "le"}
VALUES = {
    "state": {*State, "busy", "free"},
    "outcome": {*OUTCOMES.values(), LOST},
    "status": {"running", "draining", "silent"},
    "reason": {"stale_claim", "unknown", "wrong_state", "stale_epoch", "other"},
}
FUNCTIONS = {"sum", "max", "min", "count", "rate", "increase", "histogram_quantile", "label_values", "absent"}
WORDS = {"by", "and", "or", "offset", "m"}
NAMES = {metric.name: metric for metric in METRICS}


def exposed(metric: Metric) -> set[str]:
    suffixes = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
    return {metric.name + suffix for suffix in suffixes}


EXPOSED = {name: metric for metric in METRICS for name in exposed(metric)}


def board_queries() -> Iterator[str]:
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def alert_queries() -> list[str]:
    text = ALERTS.read_text()
    found = re.findall(r"^        expr: (?:\|\n((?:          .*\n)+)|(.+)\n)", text, re.MULTILINE)
    assert len(found) == text.count("- alert: ")
    return [" ".join((several or one).split()) for several, one in found]


#: That of Prometheus itself is about a job that `prometheus.yml` has.
UP = 'up{job=~"holdfast.*"} == 0'
QUERIES = [query for query in (*board_queries(), *alert_queries()) if query != UP]


@pytest.mark.parametrize("query", QUERIES)
def test_every_name_in_a_query_exists(query: str) -> None:
    metrics = re.findall(r"holdfast_\w+", query)
    assert metrics
    assert [name for name in metrics if name not in EXPOSED] == []
    labels = {label for name in metrics for label in EXPOSED[name].labels} | ADDED
    for name, chosen in re.findall(r"(holdfast_\w+)\{([^}]*)\}", query):
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', chosen):
            assert label in EXPOSED[name].labels
            if label in VALUES:
                assert set(value.split("|")) <= VALUES[label]
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        assert set(grouped.split(", ")) <= labels
    bare = re.sub(r'\{[^}]*\}|"[^"]*"|\[[^]]*\]|by \([^)]*\)|label_values\(.*\)|holdfast_\w+', " ", query)
    assert set(re.findall(r"[a-z_]+", bare)) <= FUNCTIONS | WORDS
    for opening, closing in ("()", "{}", "[]"):
        assert query.count(opening) == query.count(closing)


@pytest.mark.parametrize("query", QUERIES)
def test_counters_are_asked_for_their_rate_and_gauges_of_the_store_are_not_added_up(query: str) -> None:
    for name in re.findall(r"holdfast_\w+", query):
        rated = re.search(rf"(rate|increase)\({name}[^)]*\[", query) is not None
        assert rated is (EXPOSED[name].kind is not MetricKind.GAUGE)
        if name.startswith(("holdfast_queue_", "holdfast_workers", "holdfast_slots")) and "label_values" not in query:
            assert re.search(rf"max(?: by \([^)]*\))? ?\({name}", query)


def test_the_legends_of_the_board_are_labels_that_the_query_keeps() -> None:
    def targets() -> Iterator[dict[str, Any]]:
        for panel in json.loads(BOARD.read_text())["panels"]:
            yield from panel.get("targets", ())

    for target in targets():
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            kept = re.findall(r"by \(([^)]*)\)", target["expr"])
            assert label in (", ".join(kept).split(", ") if kept else ADDED), target


def test_the_panels_of_the_board_have_their_own_ids_and_do_not_overlap() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_board_is_one_that_grafana_10_and_later_take() -> None:
    board = json.loads(BOARD.read_text())
    assert 36 <= board["schemaVersion"] <= 39, "newer than 10.4 and 11.0 know, or of before 9"
    assert not {"id", "__inputs", "__requires"} & set(board), "an export of one Grafana for another"
    source, queue = board["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    chosen = {"type": "prometheus", "uid": f"${{{source['name']}}}"}
    assert (queue["type"], queue["datasource"], queue["definition"]) == ("query", chosen, queue["query"]["query"])
    for panel in board["panels"]:
        if panel["type"] == "row":
            assert (panel["collapsed"], panel["panels"]) == (False, [])
            continue
        assert panel["type"] in ("stat", "timeseries")
        assert panel["datasource"] == chosen
        assert set(panel["fieldConfig"]) == {"defaults", "overrides"}
        assert all(target["datasource"] == chosen for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_the_alert_about_jobs_is_about_those_that_are_scraped() -> None:
    assert UP in alert_queries()
    assert re.findall(r"job_name: (\S+)", SCRAPES.read_text()) == ["holdfast-server", "holdfast-worker"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.parametrize(
    "words", [("check", "rules", ALERTS), ("check", "config", "--syntax-only", SCRAPES), ("test", "rules", ALERTS_TEST)]
)
def test_prometheus_itself_takes_the_files_and_its_alerts_fire_when_they_should(words: tuple[Any, ...]) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_is_on_the_board() -> None:
    board = BOARD.read_text()
    assert {name for name in NAMES if name not in board} == set()


def test_every_metric_is_explained_in_the_docs() -> None:
    rows = re.findall(
        r"^\| `(holdfast_\w+)` \| (\w+) \| ([^|]*) \| (\w+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    written = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), teller, text) for name, kind, labels, teller, text in rows
    }
    assert written == {
        metric.name: (metric.kind.value, metric.labels, metric.teller.value, metric.text) for metric in METRICS
    }


def test_no_label_can_be_an_id_an_argument_or_the_text_of_an_error() -> None:
    assert {label for metric in METRICS for label in metric.labels} == {
        "queue", "type", "outcome", "cause", "event", "reason", "method", "error", "state", "status", "version"
    }  # fmt: skip
