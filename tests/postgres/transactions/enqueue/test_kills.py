"""A process that is killed at any moment leaves a row with its task, or neither."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import threading

import pytest

from tests.postgres.transactions.enqueue.sessions import KINDS
from tests.postgres.transactions.enqueue.shop import Shop
from tests.support import ROOT, environment, eventually

pytestmark = pytest.mark.alone

#: All kinds of sessions take turns.
KILLS = int(os.environ.get("TRANSACTION_KILLS", "12"))
#: Longer than several transactions take.
_LONGEST_LIFE_S = 0.15
_OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def _killed(kind: str, url: str, first_name: str) -> list[str]:
    """What a process said that it had committed before it was killed."""
    module = "tests.postgres.transactions.enqueue.victim"
    with subprocess.Popen(
        [sys.executable, "-m", module, kind, url, first_name],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as victim:
        assert victim.stdout is not None
        assert victim.stderr is not None
        select.select([victim.stdout, victim.stderr], [], [], 60)
        threading.Event().wait(random.uniform(0, _LONGEST_LIFE_S))
        victim.kill()
        said, errors = victim.stdout.read().decode(), victim.stderr.read().decode()
    assert errors == ""
    return said.splitlines()


@pytest.mark.timeout(60 + 20 * KILLS)
def test_row_and_task_are_both_there_or_neither(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.ship.enqueue("known before")
    shop.app.close()
    acknowledged: list[str] = []
    for number in range(KILLS):
        kind = list(KINDS)[number % len(KINDS)]
        said = _killed(kind, shop.url, f"k{number}")
        assert said, kind
        acknowledged += said
        # What the server was about to do for it, it does to the end.
        eventually(lambda: shop.query(_OTHERS) == [(0,)], 20, "the sessions of the dead to end")
        rows, tasks = shop.orders(), shop.tasks()
        assert tasks == sorted([*rows, "known before"]), kind
        assert len(set(rows)) == len(rows)
        assert set(acknowledged) <= set(rows), kind
        assert not [row for row in rows if row.startswith("no-")]
    with capsys.disabled():
        print(f"\n{KILLS} kills, {len(rows)} rows with a task each", end="")
