from typing import Any

from flask import Flask

from holdfast.contrib.celery import Celery, Task


def make_celery(flask_app: Flask) -> Celery:
    class FlaskTask(Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with flask_app.app_context():
                return self.run(*args, **kwargs)

    app = Celery(flask_app.name, task_cls=FlaskTask)
    app.config_from_object(flask_app.config["CELERY"])
    app.set_default()
    return app
