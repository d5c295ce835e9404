"""A tiny run of the real thing, and the parts that can be wrong without anybody noticing."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.bench import command, setting
from holdfast.bench.figures import Figure, Report, at_least, at_most, percentile
from holdfast.bench.scenarios import crowd, latency
from holdfast.bench.table import number, show_in_short
from tests.support import holdfast_command, run_holdfast

FIGURES = {
    "bare_loop_100",
    "bare_loop_200",
    "drain",
    "drain_share",
    "drain_memory",
    "enqueue_one_sync",
    "enqueue_one_async",
    "enqueue_tasks",
    "enqueue_threads",
    "enqueue_bulk",
    "idle_cpu",
    "idle_memory",
    "pickup_p50",
    "pickup_p99",
    "pickup_whole_p50",
    "pickup_whole_p99",
    *(f"priority_{order}_{name}" for order in ("strict", "aged") for name in ("p50", "p99", "low", "left")),
    "unknown_types",
    "unknown_types_share",
    "due_earliest",
    "due_p50",
    "due_p99",
}


def test_a_tiny_run_with_a_real_worker_writes_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = setting.Sizes(
        tasks=2_000, bare=1_000, singles=20, concurrent=200, pickups=5, due=50, due_in_s=0.5, idle_s=0.5, low=5_000
    )
    monkeypatch.setattr(setting.Sizes, "quick", classmethod(lambda cls: tiny))
    output = tmp_path / "bench.json"
    options = ["--quick", "--json", "--directory", str(tmp_path), "--output", str(output)]
    result = CliRunner().invoke(command.bench, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads(output.read_text())
    assert json.loads(result.stdout) == report
    assert set(report) == {"machine", "versions", "settings", "figures"}
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert set(figures) == FIGURES
    assert all(figure["value"] > 0 for name, figure in figures.items() if figure["unit"] == "tasks/s")
    assert figures["due_earliest"]["met"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


SERVER_FIGURES = {
    "direct_drain",
    "server_drain",
    "server_drain_share",
    *(f"server_enqueue_{name}" for name in ("one_sync", "one_async", "tasks", "threads", "bulk")),
    *(f"server_idle_{name}" for name in ("cpu", "memory")),
    *(f"server_{name}" for name in ("pickup_p50", "pickup_p99", "pickup_whole_p50", "pickup_whole_p99")),
    *(f"server_due_{name}" for name in ("earliest", "p50", "p99")),
    *(f"server_crowd_{name}" for name in ("cpu", "calls", "memory", "p50", "p99", "looks")),
}


def test_a_tiny_run_through_a_real_server_writes_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = setting.Sizes(
        tasks=500, singles=10, concurrent=50, pickups=5, due=20, due_in_s=0.5, idle_s=0.1, pollers=21, poll_s=0.5
    )
    monkeypatch.setattr(setting.Sizes, "quick", classmethod(lambda cls: dataclasses.replace(tiny, crowd_s=0.5)))
    for scenario in (crowd, latency):
        monkeypatch.setattr(scenario, "_SETTLE_S", 0.1)
    options = ["--server", "--quick", "--json", "--directory", str(tmp_path)]
    result = CliRunner().invoke(command.bench, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    figures = {figure["name"]: figure for figure in json.loads(result.stdout)["figures"]}
    assert set(figures) == SERVER_FIGURES
    assert all(figure["value"] > 0 for figure in figures.values() if figure["unit"] == "tasks/s")
    assert {name for name, figure in figures.items() if figure["target"]} == {
        "server_drain",
        "server_crowd_cpu",
        "server_crowd_calls",
        "server_crowd_p99",
    }
    assert figures["server_crowd_looks"]["value"] >= 1  # the counters of the server are found
    assert figures["server_crowd_memory"]["value"] > 10
    assert not list(tmp_path.iterdir())


def test_a_user_sees_five_figures_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ("drain", "enqueue_one_sync", "enqueue_bulk", "pickup_whole_p50", "pickup_whole_p99")
    figures = [Figure(name, "title", 1234.5, "unit", at_least(9_999)) for name in (*shown, "idle_cpu")]
    show_in_short(Report(machine={}, versions={}, settings={}, figures=figures))
    told = capsys.readouterr().out
    assert told.count("unit") == 5
    assert "On this machine, a worker process runs 1,234 empty tasks per second" in " ".join(told.split())
    assert "9,999" not in told


def test_a_crowd_that_the_system_would_not_let_in_is_refused_in_one_line() -> None:
    limit = ["sh", "-c", 'ulimit -n 500 && exec "$@"', "sh"]
    done = subprocess.run([*limit, *holdfast_command("bench", "--server")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "holdfast: 2,000 clients need 2,200 descriptors, and 500 are allowed: raise ulimit -n\n"


@pytest.mark.parametrize(
    "wrong",
    [["--tasks", "1"], ["--concurrency", "0"], ["--directory", "no/such/place"], ["extra"], ["--server", "--full"]],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(wrong: list[str]) -> None:
    done = run_holdfast("bench", *wrong)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_target_is_met_from_the_right_side() -> None:
    assert [at_least(10).met_by(value) for value in (9.9, 10, 11)] == [False, True, True]
    assert [at_most(10).met_by(value) for value in (9.9, 10, 11)] == [True, True, False]


def test_figures_tell_whether_they_are_met_and_nothing_without_a_target() -> None:
    figures = [Figure("a", "A", 5, "ms", at_most(2)), Figure("b", "B", 5, "ms")]
    report = json.loads(Report(machine={}, versions={}, settings={}, figures=figures).as_json())
    assert [figure["met"] for figure in report["figures"]] == [False, None]
    assert report["figures"][0]["target"] == {"value": 2, "at_least": False}


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.01, 0.5, 0.99, 1.0)] == [1, 1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7


def test_numbers_have_the_digits_that_mean_something() -> None:
    assert [number(value) for value in (0.123, 9.876, 12.34, 123.4, 61_234.5)] == [
        "0.12",
        "9.88",
        "12.3",
        "123",
        "61,234",
    ]
