# mypy: ignore-errors
"""What a type checker must refuse: every line marked with E, and no other."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import create_engine

from holdfast import Holdfast, Retry, current

app = Holdfast("sqlite://")


@app.task
def resize(url: str, width: int = 800) -> str:
    return f"{url}@{width}"


@app.task(queue="images")
async def fetch(url: str, *, tries: int = 3) -> bytes:
    return url.encode()


@app.task(quue="images")  # E:
def misspelt_option() -> None: ...


def wrong_arguments() -> None:
    resize.enqueue()  # E:
    resize.enqueue(3)  # E:
    resize.enqueue("cat.jpg", wdith=400)  # E:
    resize.enqueue("cat.jpg", width="400")  # E:
    resize.enqueue("cat.jpg", 400, 300)  # E:
    resize.enqueue("cat.jpg", delay="2h")  # E:
    resize.prepare(url=None)  # E:
    resize.prepare("cat.jpg", wdith=400)  # E:
    resize.delay("cat.jpg")  # E:
    app.tasks.list(status="ready")  # E:
    resize.using(delay="2h").enqueue(3)  # E:
    fetch.enqueue("cat.jpg", 3)  # E:
    fetch.using(queue="images").enqueue(tries=3)  # E:
    resize()  # E:


async def wrong_async_arguments() -> None:
    await resize.aenqueue(3)  # E:
    await fetch.aenqueue("cat.jpg", tries="3")  # E:
    await fetch.using(priority=3).aenqueue()  # E:
    await fetch(3)  # E:
    await resize.enqueue("cat.jpg")  # E:


def wrong_results() -> None:
    number: int = resize.enqueue("cat.jpg").result()  # E:
    text: str = fetch.enqueue("cat.jpg").result()  # E:
    other: bytes = app.handle("0" * 32, int).result()  # E:
    print(number, text, other)


def wrong_options(urls: Iterator[str]) -> None:
    resize.using(queue=3)  # E:
    resize.using(priority="high")  # E:
    resize.using(width=400)  # E:
    resize.using(run_at="tomorrow")  # E:
    resize.using(retry=5)  # E:
    resize.using(transaction="begin")  # E:
    resize.using(transaction=app)  # E:
    resize.using(transaction=create_engine("postgresql://"))  # E:
    Retry(give_up_on=ValueError)  # E:
    app.enqueue_many(urls)  # E:
    app.enqueue_many(resize.prepare(3) for _ in urls)  # E:


async def wrong_steps() -> None:
    current().once("order-42", resize, 3)  # E:
    current().once("order-42", resize, "cat.jpg", keep="30d")  # E:
    current().once("order-42", keep=[30])(resize, "cat.jpg")  # E:
    current().once(42, resize, "cat.jpg")  # E:
    await current().once("order-42", resize, "cat.jpg")  # E:
    text: str = await current().once("order-42", fetch, "cat.jpg")  # E:
    print(text)


def wrong_orders() -> None:
    app.queues.set_order("default", "fifo")  # E:
    resize.enqueue("cat.jpg").prioritize("high")  # E:


def wrong_schedules() -> None:
    app.cron("0 3 * * *", overlap="never")  # E:
    app.cron("0 3 * * *", often=True)  # E:
    app.every("1m", timezone="Europe/Berlin")  # E:
    app.every([5])  # E:
    app.schedules.put("eu", "resize", every="1h")  # E:
    app.schedules.put("eu", resize, ever="1h")  # E:
