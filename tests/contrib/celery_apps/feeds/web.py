import os
import sqlite3
from pathlib import Path
from typing import Any

from flask import Flask, g, jsonify

from tests.contrib.celery_apps.feeds.celery_app import make_celery


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["DATABASE"] = str(Path(os.environ["CASE_FOLDER"]) / "feeds.db")
    app.config["CELERY"] = {
        "broker_url": "redis://localhost:6379/0",
        "holdfast_url": os.environ.get("CASE_STORE"),  # the one new setting
        "task_always_eager": bool(os.environ.get("CASE_EAGER")),
        "task_soft_time_limit": 30,
    }
    app.extensions["celery"] = make_celery(app)

    @app.teardown_appcontext
    def close(_: Any) -> None:
        if "db" in g:
            g.db.close()

    @app.post("/feeds/<name>")
    def start(name: str) -> Any:
        from tests.contrib.celery_apps.feeds.tasks import fetch

        return jsonify(id=fetch.delay(name).id)

    @app.get("/results/<task_id>")
    def result(task_id: str) -> Any:
        found = app.extensions["celery"].AsyncResult(task_id)
        return jsonify(state=found.state, ready=found.ready(), value=found.result if found.successful() else None)

    with app.app_context():
        database().execute("CREATE TABLE IF NOT EXISTS entries (name TEXT, tries INTEGER)")
    return app


def database() -> sqlite3.Connection:
    """The connection of this app context, good for one thread."""
    if "db" not in g:
        from flask import current_app

        g.db = sqlite3.connect(current_app.config["DATABASE"], timeout=20, isolation_level=None)
    connection: sqlite3.Connection = g.db
    return connection
