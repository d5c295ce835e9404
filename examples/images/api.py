"""The service: takes images, and tells what became of them."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import FastAPI, Header, HTTPException, Query
from pydantic import BaseModel
from tasks import app, process_image

from holdfast.errors import BadName, RequestConflict, StoreError, UnknownTask

log = logging.getLogger("uvicorn.error")
_IMAGE_URL = re.compile(r"https?://[^\s/?#]+[^\s]*")


class Accepted(BaseModel):
    task_id: str


class Status(BaseModel):
    task_id: str
    status: Literal["pending", "completed", "failed"]
    result_url: str | None = None
    error_msg: str | None = None
    retry_count: int


@asynccontextmanager
async def _until_the_end(_: FastAPI) -> AsyncIterator[None]:
    async with app:
        yield


web = FastAPI(title="Images", lifespan=_until_the_end)


@web.post("/process-image", status_code=202)
async def process(
    image_url: Annotated[str, Query(description="http:// or https://, 2,000 characters at most")] = "",
    idempotency_key: Annotated[str | None, Header(description="The same key again gives the same task_id")] = None,
) -> Accepted:
    """Takes an image; it is recorded when this returns."""
    if len(image_url) > 2000 or not _IMAGE_URL.fullmatch(image_url):
        raise HTTPException(422, "image_url: write an http:// or https:// address of 2,000 characters at most")
    try:
        call = process_image.using(request_id=idempotency_key) if idempotency_key else process_image
        async with _the_store_within(5):
            handle = await call.aenqueue(image_url)
    except BadName as error:
        raise HTTPException(422, f"Idempotency-Key: {error}") from None
    except RequestConflict:
        raise HTTPException(409, "Idempotency-Key: it was sent with another image_url before; take a new one") from None
    return Accepted(task_id=handle.task_id)


@web.get("/status/{task_id}", response_model_exclude_none=True)
async def status(task_id: str) -> Status:
    """What became of an image."""
    try:
        handle = app.handle(task_id, str)
        async with _the_store_within(5):
            task = await handle.astatus()
            result_url = await handle.aresult() if task.state == "succeeded" else None
    except UnknownTask as error:
        raise HTTPException(404, str(error)) from None
    retries = max(0, task.attempt - 1)
    if task.state == "succeeded":
        return Status(task_id=task_id, status="completed", result_url=result_url, retry_count=retries)
    if task.is_finished:
        error_msg = task.error.message if task.error else task.reason or str(task.state)
        return Status(task_id=task_id, status="failed", error_msg=error_msg, retry_count=retries)
    return Status(task_id=task_id, status="pending", retry_count=retries)


@web.get("/healthz")
async def healthz() -> dict[str, str]:
    """Whether this process answers."""
    return {"status": "ok"}


@web.get("/readyz")
async def readyz() -> dict[str, str]:
    """Whether the store answers too."""
    async with _the_store_within(2):
        await app.queues.alist()
    return {"status": "ok"}


@asynccontextmanager
async def _the_store_within(seconds: float) -> AsyncIterator[None]:
    """503 if the store does not answer: Holdfast retries for longer than an HTTP client waits."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (StoreError, TimeoutError) as error:
        log.warning("the store does not answer: %s", str(error) or f"tried for {seconds} s")
        said = "the store does not answer; send it again in a moment, a new image with an Idempotency-Key"
        raise HTTPException(503, said, {"Retry-After": "1"}) from None
