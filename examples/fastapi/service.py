"""A service with routes of its own that record tasks, and the HTTP API of Holdfast under /holdfast."""

from typing import Annotated, Any

from fastapi import Depends, FastAPI

from holdfast import Holdfast
from holdfast.contrib.fastapi import TaskApi, lifespans, task_status
from holdfast.core.task import Task

app = Holdfast()  # HOLDFAST_URL, or a file in this folder


@app.task(queue="images")
async def resize(name: str, width: int = 800) -> str:
    return f"{name} at {width}"


api = TaskApi(app)
service = FastAPI(title="Images", lifespan=lifespans(app, api))
service.mount("/holdfast", api)  # whoever calls it needs a token


@service.post("/images", status_code=202)
async def upload(name: str, width: int = 800) -> dict[str, str]:
    handle = await resize.aenqueue(name, width)
    return {"task_id": handle.task_id}


@service.get("/images/{task_id}")
async def show(task: Annotated[Task, Depends(task_status(app))]) -> dict[str, Any]:
    result = await app.handle(task.task_id, str).aresult() if task.state == "succeeded" else None
    return {"state": task.state, "result": result}
