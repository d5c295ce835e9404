"""An error that is worth a retry, and one that is not."""

from running import temporary_url, worker

from holdfast import Holdfast, Retry, TaskFailed, current

app = Holdfast(temporary_url(), retry=Retry(max_attempts=4, base="200ms", give_up_on=(ValueError,)))


@app.task
def fetch(url: str) -> str:
    if not url.startswith("https:"):
        raise ValueError(f"{url} is not an address")  # a retry fails the same way
    if current().attempt < 3:
        raise ConnectionError("connection refused")  # a retry may succeed
    return f"the page at {url}"


if __name__ == "__main__":
    good, bad = fetch.enqueue("https://example.com"), fetch.enqueue("example")
    with worker(__file__):
        print("result:", good.result(timeout=30))
        for run in good.history():
            print(f"  attempt {run.attempt}: {run.outcome}", run.error.message if run.error else "")
        try:
            bad.result(timeout=30)
        except TaskFailed as error:
            print("failed:", error)
