"""`--reload`: the children follow the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from holdfast.worker.supervisor.reload import snapshot
from tests.support import eventually, run_worker
from tests.worker.helpers import in_state

SOURCE = """
import asyncio
from holdfast import Holdfast
app = Holdfast()

@app.task(name="answer")
async def answer(pause: float = 0.0) -> int:
    await asyncio.sleep(pause)
    return {answer}
"""


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path}/tasks.db")


def write(folder: Path, text: str) -> None:
    (folder / "shop.py").write_text(text)


def test_a_change_replaces_the_children_and_a_mistake_does_not(tmp_path: Path, app: Holdfast) -> None:
    task_type = app.task(name="answer")(lambda pause=0.0: 0)
    write(tmp_path, SOURCE.format(answer=1))
    with run_worker("shop:app", app.url, "--reload", cwd=tmp_path) as worker:
        assert task_type.enqueue().result(20) == 1
        running = task_type.enqueue(2.0)
        in_state(running, State.CLAIMED)
        write(tmp_path, SOURCE.format(answer=2))
        eventually(lambda: task_type.enqueue().result(20) == 2, 20)
        assert running.result(20) == 1  # it began in the old child, and was let finish there
        write(tmp_path, "import nonsense_that_is_not_there\n")
        eventually(lambda: "cannot import 'shop:app'" in worker.output(), 20)
        assert task_type.enqueue().result(20) == 2
        write(tmp_path, SOURCE.format(answer=3))
        eventually(lambda: task_type.enqueue().result(20) == 3, 20)
        output = worker.output()
        assert output.count("cannot import") == 1
        assert output.count("shop.py changed; replacing the children") == 3
        assert "Traceback" not in output
    app.close()


def test_a_mistake_at_the_start_waits_for_the_next_change(tmp_path: Path, app: Holdfast) -> None:
    task_type = app.task(name="answer")(lambda pause=0.0: 0)
    write(tmp_path, "raise ValueError('the settings are missing')\n")
    with run_worker("shop:app", app.url, "--reload", "--processes", "2", cwd=tmp_path) as worker:
        eventually(lambda: "the settings are missing (" in worker.output(), 20)
        eventually(lambda: not worker.children(), 20)
        assert worker.process.poll() is None
        write(tmp_path, SOURCE.format(answer=1))
        assert task_type.enqueue().result(20) == 1
        assert worker.output().count("cannot import") == 1
        assert worker.stop() == 0
    app.close()


def test_an_app_that_moves_to_another_store_is_not_followed(tmp_path: Path, app: Holdfast) -> None:
    task_type = app.task(name="answer")(lambda pause=0.0: 0)
    write(tmp_path, SOURCE.format(answer=1))
    with run_worker("shop:app", app.url, "--reload", cwd=tmp_path) as worker:
        assert task_type.enqueue().result(20) == 1
        write(tmp_path, SOURCE.format(answer=2).replace("Holdfast()", "Holdfast('sqlite:///elsewhere.db')"))
        eventually(lambda: "names another store or lease than before; start the worker anew" in worker.output(), 20)
        assert task_type.enqueue().result(20) == 1
    app.close()


def test_only_source_files_of_the_project_are_looked_at(tmp_path: Path) -> None:
    looked_at = {"a.py", "package/b.py", "package/deep/c.py"}
    ignored = {
        "readme.md", ".git/hook.py", "__pycache__/a.py", "node_modules/x/y.py", "env/lib/site-packages/z.py",
        "virtual/pyvenv.cfg", "virtual/bin/activate.py",
    }  # fmt: skip
    for name in looked_at | ignored:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert set(snapshot(tmp_path)) == {str(tmp_path / name) for name in looked_at}
