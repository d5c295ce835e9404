"""A worker of the next release starts: the store has what its code declares, and what people paused stays paused."""

from __future__ import annotations

from pathlib import Path

from holdfast.admin import schedules as actions
from holdfast.core.schedule.record import Schedule
from tests.maintenance.test_nodes import ask
from tests.support import eventually, run_worker

APP = "tests.worker.apps.deployed"  # the same app as with :app


def _schedules(url: str) -> dict[str, Schedule]:
    return {schedule.name: schedule for schedule in ask(url, actions.listed)}


def test_a_release_brings_the_store_in_line_with_its_code(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with run_worker(APP, url, env={"RELEASE": "first"}) as worker:
        eventually(lambda: _schedules(url).keys() == {"kept", "gone"}, 20)
        ask(url, lambda store: actions.pause(store, "kept"))
        worker.stop()
    with run_worker(f"{APP}:app", url, env={"RELEASE": "second"}) as worker:
        eventually(lambda: _schedules(url).keys() == {"kept", "new"}, 20)
        eventually(lambda: f"schedule gone is removed: {APP}:app no longer declares it" in worker.output())
        worker.stop()
    kept = _schedules(url)["kept"]
    assert (kept.timing.cron, kept.paused, kept.next_at_ms) == ("@hourly", True, None)
    assert {schedule.source for schedule in _schedules(url).values()} == {f"{APP}:app"}


def test_a_bad_schedule_keeps_the_worker_from_starting(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from holdfast import Holdfast\napp = Holdfast()\n\n@app.cron('61 * * * *')\ndef never() -> None: ...\n"
    )
    with run_worker("broken:app", f"sqlite:///{tmp_path}/tasks.db", cwd=tmp_path) as worker:
        assert worker.process.wait(20) == 2
        assert "BadSchedule: cron: '61 * * * *' is refused: bad minute" in worker.output()
        assert "Traceback" not in worker.output()
