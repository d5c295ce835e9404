"""`holdfast init` and `holdfast completion`: what one needs before the first task."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from holdfast.cli import output
from holdfast.version import __version__

_TASKS: Final = """\
from holdfast import Holdfast, Retry

app = Holdfast({url})


@app.task(retry=Retry(max_attempts=5, base="2s"))
def greet(name: str) -> str:
    return f"Hello, {{name}}!"


if __name__ == "__main__":
    handle = greet.enqueue("world")
    print(f"enqueued {{handle.task_id}}")
    print(handle.result(timeout=30))
"""

_COMPOSE: Final = {
    "redis": """\
services:
  redis:
    image: redis:7
    # Tasks survive a crash of Redis: each write is in its append-only file within a second.
    command: ["redis-server", "--appendonly", "yes", "--maxmemory-policy", "noeviction"]
    ports: ["127.0.0.1:6379:6379"]
    volumes: ["redis:/data"]

volumes:
  redis:
""",
    "postgres": """\
services:
  postgres:
    image: postgres:17
    environment:
      POSTGRES_DB: holdfast
      POSTGRES_USER: holdfast
      POSTGRES_PASSWORD: holdfast
    ports: ["127.0.0.1:5432:5432"]
    volumes: ["postgres:/var/lib/postgresql/data"]

volumes:
  postgres:
""",
}

_UNIT: Final = """\
# Copy to ~/.config/systemd/user/, then: systemctl --user enable --now holdfast-worker
[Unit]
Description=Holdfast worker
After=network.target

[Service]
Type=notify
WorkingDirectory={folder}
ExecStart={command} worker tasks:app
Restart=always
# Longer than the worker's own grace period, so that running tasks may finish.
TimeoutStopSec=60

[Install]
WantedBy=default.target
"""

_README: Final = """\
# Tasks

Tasks of this project run on Holdfast, a durable task queue.

{start}    holdfast worker tasks:app     # run tasks; Ctrl-C shuts the worker down gracefully
    python tasks.py               # in a second terminal: enqueue one and wait for its result

To look at them:

    holdfast tasks ls --watch
    holdfast dead ls
    holdfast doctor

{note}
"""

_URLS: Final = {
    "sqlite": "",
    "redis": '"redis://localhost:6379/0"',
    "postgres": '"postgresql://holdfast:holdfast@localhost/holdfast"',
}
_NOTES: Final = {
    "sqlite": "Tasks are in `holdfast.db` in this folder. `holdfast-worker.service` runs the worker under systemd.",
    "redis": "Tasks are in Redis, which `compose.yaml` starts. Commands find it by HOLDFAST_URL or --url.",
    "postgres": "Tasks are in PostgreSQL, which `compose.yaml` starts. Commands find it by HOLDFAST_URL or --url.",
}


#: What has to be installed for a store.
_CLIENTS: Final = {"redis": "redis hiredis", "postgres": "'psycopg[binary]'"}
#: The module by which it can be told whether it is.
_MODULES: Final = {"redis": "redis", "postgres": "psycopg"}


def _command() -> str:
    """The running `holdfast` by its whole path, since systemd does not look into virtual environments."""
    script = Path(sys.executable).with_name("holdfast")
    words = [str(script)] if script.exists() else [sys.executable, "-m", "holdfast"]
    return " ".join(f'"{_specifiers(word)}"' if " " in word else _specifiers(word) for word in words)


def _specifiers(text: str) -> str:
    """The text as systemd reads it as it stands."""
    return text.replace("%", "%%")


def _next_steps(directory: Path, store: str) -> str:
    """What to do with the new project, in order."""
    steps = [] if directory == Path() else [f"cd {shlex.quote(str(directory))}"]
    if store in _CLIENTS:
        if find_spec(_MODULES[store]) is None:
            steps.append(f"pip install {_CLIENTS[store]}")
        steps.append("docker compose up -d")
    return " && ".join([*steps, "holdfast worker tasks:app"])


def files_of(store: str, folder: Path) -> dict[str, str]:
    """The files of a new project by name."""
    url = _URLS[store]
    start = (
        f"    pip install {_CLIENTS[store]}\n    docker compose up -d\n    export HOLDFAST_URL={url}\n" if url else ""
    )
    beside = (
        {"compose.yaml": _COMPOSE[store]}
        if url
        else {"holdfast-worker.service": _UNIT.format(folder=_specifiers(str(folder)), command=_command())}
    )
    return {
        "tasks.py": _TASKS.format(url=url),
        **beside,
        "README.md": _README.format(start=start, note=_NOTES[store]),
    }


@click.command()
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--store", type=click.Choice(sorted(_URLS)), default="sqlite", show_default=True, help="Keep tasks in this store."
)
def init(directory: Path, store: str) -> None:
    """Create a small project: tasks.py, a README, and a compose file or a systemd unit.

    With SQLite there is a systemd unit for the worker, with Redis and PostgreSQL a compose file that starts them. Files
    that exist are never overwritten: then nothing is created.
    """
    folder = directory.resolve()
    files = files_of(store, folder)
    there = sorted(name for name in files if (folder / name).exists())
    if there:
        raise click.ClickException(f"{', '.join(there)} already in {folder}: nothing was created; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise click.ClickException(f"cannot write to {folder}: {error.strerror or error}") from None
    for name in files:
        output.line(f"created {directory / name}")
    output.line(f"Next: {_next_steps(directory, store)} (README.md has more)")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands and options. Save it where the shell looks for completions, or evaluate it at its start: eval
    "$(holdfast completion bash)".
    """
    from click.shell_completion import get_completion_class

    from holdfast.cli.main import main

    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"there is no completion for {shell} in Holdfast {__version__}")
    click.echo(found(main, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
