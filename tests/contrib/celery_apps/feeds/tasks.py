import time
from typing import Any

from holdfast.contrib.celery.exceptions import SoftTimeLimitExceeded
from tests.contrib.celery_apps.feeds.web import create_app, database

flask_app = create_app()
celery = flask_app.extensions["celery"]


class TooMany(Exception):
    pass


@celery.task(bind=True, max_retries=3)
def fetch(self: Any, name: str) -> int:
    """The first two tries are told to come back later, as a Retry-After would."""
    database().execute("INSERT INTO entries VALUES (?, ?)", (name, self.request.retries))
    try:
        if self.request.retries < 2:
            raise TooMany("429")
    except TooMany as error:
        raise self.retry(exc=error, countdown=0.1) from error
    self.update_state(state="PROGRESS", meta={"done": 1})
    found = database().execute("SELECT count(*) FROM entries WHERE name = ?", (name,)).fetchone()
    return int(found[0])


@celery.task(bind=True, max_retries=1)
def give_up(self: Any) -> None:
    raise self.retry(exc=TooMany("for ever"), countdown=0)


@celery.task(time_limit=1)
def stuck() -> None:
    with flask_app.app_context():
        database().execute("INSERT INTO entries VALUES ('stuck', 0)")
    time.sleep(600)


@celery.task(soft_time_limit=0.2)
def slow() -> str:
    try:
        while True:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        return "cleaned up"
