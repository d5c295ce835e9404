"""The task: it takes its time, and fails at random as a task does that needs other machines."""

import asyncio
import random
from hashlib import sha256

from settings import read_settings

from holdfast import Holdfast, Retry, current

settings = read_settings()
app = Holdfast(
    settings.url,
    lease=settings.lease_s,
    queue="images",
    retry=Retry(max_attempts=settings.max_attempts, base=settings.retry_delay_s, cap="1m"),
)


class ImageHostError(Exception):
    """The image could not be fetched this time."""


@app.task(name="process_image", timeout="5m")
async def process_image(image_url: str) -> str:
    """The address of the processed image. Nothing is fetched here: put your own work in its place."""
    await asyncio.sleep(settings.work_s)
    if random.random() < settings.failure_rate:
        raise ImageHostError(f"no answer from the host of {image_url} (attempt {current().attempt})")
    # The same image gives the same address: a second run, after a lost worker, overwrites and adds nothing.
    return f"{settings.results_url}/{sha256(image_url.encode()).hexdigest()[:16]}.png"
