"""An app whose code is that of the release that the environment names."""

from __future__ import annotations

import os

from holdfast import Holdfast

app = Holdfast()


@app.task(name="work")
async def work() -> None: ...


for name, cron in {"first": {"kept": "@daily", "gone": "@daily"}, "second": {"kept": "@hourly", "new": "@daily"}}[
    os.environ["RELEASE"]
].items():
    app.cron(cron, name=name)(work)
