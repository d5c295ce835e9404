"""A service with routes of its own that record tasks, and the HTTP API of Holdfast under /holdfast."""

from typing import Annotated

from fastapi import Depends, FastAPI

from holdfast import Holdfast, TaskInfo
from holdfast.contrib.fastapi import TaskApi, TaskRouter, lifespans, task_status

app = Holdfast()  # HOLDFAST_URL, or a file in this folder


@app.task(queue="images")
async def resize(name: str, width: int = 800) -> str:
    return f"{name} at {width}"


api = TaskApi(app)
service = FastAPI(title="Images", lifespan=lifespans(app, api))
service.mount("/holdfast", api)  # its callers need a token


@service.post("/images", status_code=202)
async def upload(name: str, width: int = 800) -> dict[str, str]:
    handle = await resize.aenqueue(name, width)
    return {"task_id": handle.task_id}


@service.get("/images/{task_id}")
async def show(task: Annotated[TaskInfo, Depends(task_status(app))]) -> dict[str, str | None]:
    return {"state": task.state, "result": task.result}


# GET /tasks/{task_id}, GET /tasks/{task_id}/events, POST /tasks/{task_id}/cancel; name your own login here.
service.include_router(TaskRouter(app, dependencies=[]))
