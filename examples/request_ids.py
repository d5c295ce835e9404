"""Many senders, one request_id, one task: a repeated request never makes a second one."""

from concurrent.futures import ThreadPoolExecutor

from running import temporary_url

from holdfast import Holdfast, RequestConflict

app = Holdfast(temporary_url())


@app.task
def charge(order: int, cents: int) -> None:
    print(f"charging {cents} for order {order}")


if __name__ == "__main__":
    once = charge.using(request_id="charge-42")
    with ThreadPoolExecutor(20) as threads:
        handles = list(threads.map(lambda _: once.enqueue(42, 1999), range(100)))
    print("sent 100 times, tasks made:", len(set(handles)))
    try:
        once.enqueue(42, 2999)
    except RequestConflict as error:
        print("refused:", error)
