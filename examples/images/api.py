"""The service: takes images, and tells what became of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from tasks import app, process_image

from holdfast import StoreError, UsageError

ImageUrl = Annotated[str, Query(pattern=r"^https?://[^\s/]+\S*$", max_length=2000)]


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
async def process(image_url: ImageUrl) -> Accepted:
    """Takes an image; it is recorded when this returns."""
    handle = await process_image.aenqueue(image_url)
    return Accepted(task_id=handle.task_id)


@web.get("/status/{task_id}", response_model_exclude_none=True)
async def status(task_id: str) -> Status:
    """What became of an image."""
    try:
        handle = app.handle(task_id, str)
        task = await handle.astatus()
    except UsageError as error:
        raise HTTPException(404, str(error)) from None
    retries = max(0, task.attempt - 1)
    if task.state == "succeeded":
        return Status(task_id=task_id, status="completed", result_url=await handle.aresult(), retry_count=retries)
    if task.finished_at_ms is not None:
        errors = [run.error.message for run in task.history if run.error is not None]
        error_msg = errors[-1] if errors else task.reason or str(task.state)
        return Status(task_id=task_id, status="failed", error_msg=error_msg, retry_count=retries)
    return Status(task_id=task_id, status="pending", retry_count=retries)


@web.get("/healthz")
async def healthz() -> dict[str, str]:
    """Whether this process answers."""
    return {"status": "ok"}


@web.get("/readyz")
async def readyz() -> dict[str, str]:
    """Whether the store answers too; a probe does not wait as long as a call that may still succeed."""
    try:
        async with asyncio.timeout(2):
            await app.queues.alist()
    except TimeoutError:
        raise HTTPException(503, "the store does not answer") from None
    return {"status": "ok"}


@web.exception_handler(StoreError)
async def store_is_away(_: Request, error: StoreError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})
