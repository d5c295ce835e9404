"""What a type checker must accept, with the types that it must see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session

from holdfast import Again, Cancel, Holdfast, Retry, Snooze, TaskHandle, TaskInfo, as_completed, current
from holdfast.core.schedule.record import Schedule
from holdfast.core.task import Attempt, LogLine, Progress
from holdfast.stores.contract import QueueCounts

app = Holdfast("sqlite://", retry=Retry(max_attempts=3, give_up_on=(ValueError,)))


@dataclass
class Picture:
    url: str


@app.task
def resize(url: str, width: int = 800) -> str:
    return f"{url}@{width}"


@app.task(queue="images", priority=5, retry=Retry(base="1s"), name="images.crop")
def crop(picture: Picture, *corners: int, lossless: bool = False) -> Picture:
    return picture


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


@app.task(queue="slow")
async def crawl(url: str, depth: int | None = None) -> list[str] | Snooze:
    return Snooze("30s") if depth is None else [url]


@app.task
def maybe(number: int) -> int | Snooze | Again | Cancel:
    if not number:
        return Again("30s")
    return Cancel("odd") if number % 2 else number


@app.task
def nothing() -> None: ...


def as_functions() -> None:
    assert_type(resize("cat.jpg"), str)
    assert_type(crop(Picture("cat.jpg"), 1, 2, lossless=True), Picture)


async def as_coroutines() -> None:
    assert_type(await fetch("cat.jpg"), bytes)
    assert_type(await resize.aenqueue("cat.jpg", width=400), TaskHandle[str])
    assert_type(await (await fetch.aenqueue("cat.jpg")).aresult(), bytes)
    assert_type(await app.aenqueue_many([fetch.prepare("a"), fetch.prepare("b")]), list[TaskHandle[bytes]])
    assert_type(await app.handle("0" * 32, int).aresult(timeout="10s"), int)
    async with app as same:
        assert_type(same, Holdfast)


def as_tasks() -> None:
    handle = resize.enqueue("cat.jpg", 400)
    assert_type(handle, TaskHandle[str])
    assert_type(handle.result(timeout=10), str)
    assert_type(handle.status(), TaskInfo)
    assert_type(handle.status().created_at, datetime)
    assert_type(app.tasks.list(state="ready", type=resize, since="1h"), list[TaskInfo])
    assert_type(app.status_many([handle, handle.task_id]), list[TaskInfo | None])
    assert_type([each.result() for each in as_completed([handle], timeout="1h")], list[str])
    assert_type(handle.wait(timedelta(seconds=3)), TaskInfo)
    assert_type(handle.history(), tuple[Attempt, ...])
    assert_type(handle.cancel(), bool)
    assert_type(handle.why(), str)
    handle.prioritize(5)
    assert_type(handle.progress(), Progress)
    assert_type(handle.log(), tuple[LogLine, ...])
    app.queues.set_order("default", "aged", step="5m")
    assert_type(app.queues.list(), Sequence[QueueCounts])
    assert_type(crop.enqueue(Picture("cat.jpg"), 1, 2, lossless=True).result(), Picture)
    assert_type(fetch.enqueue("cat.jpg").result(), bytes)
    assert_type(crawl.enqueue("cat.jpg", depth=3).result(), list[str])
    assert_type(maybe.enqueue(1).result(), int)
    assert_type(app.handle("0" * 32), TaskHandle[Any])
    nothing.enqueue()


def with_options() -> None:
    later = resize.using(delay="2h", priority=5, request_id="order-42", headers={"trace": "1"}, queue="images")
    assert_type(later.enqueue("cat.jpg", width=400), TaskHandle[str])
    resize.using(run_at=datetime(2030, 1, 1, tzinfo=UTC), retry=Retry(max_attempts=1)).enqueue("cat.jpg")
    fetch.using(delay=timedelta(minutes=1)).enqueue("cat.jpg")


def in_transactions(
    connection: psycopg.Connection[Any],
    session: Session,
    sessions: scoped_session[Session],
    bare: sqlalchemy.Connection,
) -> None:
    assert_type(resize.using(transaction=connection).enqueue("cat.jpg"), TaskHandle[str])
    assert_type(resize.using(transaction=session, delay="1m").enqueue("cat.jpg", width=400), TaskHandle[str])
    resize.using(transaction=sessions).enqueue("cat.jpg")
    resize.using(transaction=bare).enqueue("cat.jpg")
    app.enqueue_many(resize.using(transaction=session).prepare(url) for url in ("a", "b"))


async def in_async_transactions(
    connection: psycopg.AsyncConnection[Any], session: AsyncSession, bare: AsyncConnection
) -> None:
    assert_type(await fetch.using(transaction=connection).aenqueue("cat.jpg"), TaskHandle[bytes])
    assert_type(await resize.using(transaction=session).aenqueue("cat.jpg"), TaskHandle[str])
    await resize.using(transaction=bare).aenqueue("cat.jpg")


def many(urls: Iterator[str]) -> None:
    assert_type(app.enqueue_many(resize.prepare(url) for url in urls), list[TaskHandle[str]])
    app.enqueue_many([resize.prepare("cat.jpg"), fetch.prepare("cat.jpg")])
    anything: TaskHandle[object] = resize.enqueue("cat.jpg")
    print(anything)


async def steps() -> None:
    assert_type(await current().once("order-42", fetch, "cat.jpg"), bytes)
    assert_type(await current().once("order-42", asyncio.to_thread, resize, "cat.jpg"), str)  # pyright: ignore[reportArgumentType, reportCallIssue, reportAssertTypeFailure]
    assert_type(await current().once("order-42", keep="30d")(fetch, url="cat.jpg"), bytes)


def steps_in_a_thread() -> None:
    assert_type(current().once("order-42", resize, "cat.jpg", width=400), str)
    assert_type(current().once("order-42", keep=timedelta(days=30))(crop, Picture("cat.jpg"), 1, 2), Picture)


@app.cron("0 3 * * *", timezone="Europe/Berlin", missed="all", window="2h", overlap="skip", jitter="5m", queue="slow")
async def nightly(region: str = "eu") -> int:
    return len(region)


@app.every("10m", name="tidy-often", retry=Retry(max_attempts=1), run="thread")
@app.cron("@hourly", name="tidy-hourly", args={"deep": True})
@app.task(name="tidy")
def tidy(deep: bool = False) -> str:
    return str(deep)


async def on_schedules() -> None:
    assert_type(await nightly("us"), int)
    assert_type(nightly.enqueue("us").result(), int)
    assert_type(tidy(deep=True), str)
    assert_type(tidy.enqueue(deep=True), TaskHandle[str])
    assert_type(app.schedules.put("eu", nightly.prepare("eu"), cron="0 3 * * *"), Schedule)
    assert_type(await app.schedules.aput("tidy", tidy, every=timedelta(minutes=5)), Schedule)
    assert_type(app.schedules.edit("eu", tidy.prepare(deep=True), every="1h", queue="slow"), Schedule)
    assert_type(app.schedules.run_now("eu"), TaskHandle[Any])
    assert_type(app.schedules.next("eu", 5), Sequence[datetime])
    assert_type(app.schedules.list(), Sequence[Schedule])
