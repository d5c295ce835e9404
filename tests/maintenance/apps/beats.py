"""Twenty schedules that occurrence all the time: every second, and by cron lines with seconds."""

from __future__ import annotations

from holdfast import Holdfast

app = Holdfast(lease="2s")


@app.task(name="beat")
async def beat() -> None: ...


for number in range(10):
    app.every("1s", name=f"every-{number}")(beat)
    app.cron(f"*/{number % 3 + 1} * * * * *", timezone="Europe/Berlin", name=f"cron-{number}")(beat)
