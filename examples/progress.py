"""A long task that reports how far it is, watched from outside."""

import asyncio

from running import temporary_url, worker

from holdfast import Holdfast, current

app = Holdfast(temporary_url())


@app.task
async def count_sheep(number: int) -> str:
    for sheep in range(number):
        current().progress(sheep, number, note=f"sheep {sheep}")
        await asyncio.sleep(0.1)
    return "asleep"


async def watch() -> None:
    handle = await count_sheep.aenqueue(30)
    while not (task := await handle.astatus()).is_finished:
        print(task.state, task.progress.note)
        await asyncio.sleep(0.5)
    print("result:", await handle.aresult())
    await app.aclose()


if __name__ == "__main__":
    with worker(__file__):
        asyncio.run(watch())
