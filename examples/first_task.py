"""Record a task, run a worker, get the result."""

from running import temporary_url, worker

from holdfast import Holdfast

app = Holdfast(temporary_url())


@app.task
def resize(url: str, width: int = 800) -> str:
    return f"{url} at {width} pixels"


if __name__ == "__main__":
    handle = resize.enqueue("cat.jpg", width=400)
    print("recorded:", handle.task_id, handle.status().state)
    with worker(__file__):
        print("result:", handle.result(timeout=30))
