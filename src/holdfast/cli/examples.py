"""What `--help` shows beside the options: an example or two of every command, and the groups of the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

#: The commands of `holdfast --help`, by what they are about; those that are in none come last.
GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Start": ("init", "demo"),
    "Run": ("worker", "server"),
    "Tasks": ("enqueue", "tasks", "dead", "queues", "schedules"),
    "Operations": ("workers", "partitions", "token", "migrate", "doctor"),
    "Tools": ("celery", "bench", "completion"),
}

_ID: Final = "01a1e64e3a41"
#: By the path of the command; a test parses each of them.
EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "init": ("holdfast init", "holdfast init shop --store redis"),
    "demo": ("holdfast demo", "holdfast demo --url redis://localhost:6379/9"),
    "worker": ("holdfast worker tasks:app", "holdfast worker tasks:app --queues mail,default --concurrency 20"),
    "server": ("holdfast server", "holdfast server --port 8080"),
    "enqueue": (
        'holdfast enqueue tasks.resize --args \'{"url": "cat.jpg"}\'',
        "holdfast enqueue tasks.resize --args @arguments.json --delay 10m --app tasks:app",
    ),
    "tasks ls": (
        "holdfast tasks ls --state retry_pending --watch",
        "holdfast tasks ls --since 2h --error ValueError --arg user_id=7",
    ),
    "tasks show": (f"holdfast tasks show {_ID}",),
    "tasks why": (f"holdfast tasks why {_ID}",),
    "tasks log": (f"holdfast tasks log {_ID}",),
    "tasks cancel": (
        f"holdfast tasks cancel {_ID} --reason 'ordered twice'",
        "holdfast tasks cancel --all --queue mail --state ready --yes",
    ),
    "tasks prioritize": (f"holdfast tasks prioritize {_ID} --priority 50",),
    "tasks run-now": (f"holdfast tasks run-now {_ID}",),
    "tasks reschedule": (
        f"holdfast tasks reschedule {_ID} --in 10m",
        f"holdfast tasks reschedule {_ID} --at 2030-01-31T09:00:00+01:00",
    ),
    "tasks rerun": (f"holdfast tasks rerun {_ID}",),
    "dead ls": ("holdfast dead ls --by-error", "holdfast dead ls --queue mail --since 1d"),
    "dead show": (f"holdfast dead show {_ID}",),
    "dead replay": (
        f"holdfast dead replay {_ID}",
        f"holdfast dead replay {_ID} --set args.width=200",
        "holdfast dead replay --all --error ConnectionError --rate 10 --yes",
    ),
    "dead discard": (f"holdfast dead discard {_ID} --reason 'the customer has left'",),
    "queues ls": ("holdfast queues ls", "holdfast queues ls --watch 1s"),
    "queues pause": ("holdfast queues pause mail",),
    "queues resume": ("holdfast queues resume mail",),
    "queues order": ("holdfast queues order mail strict", "holdfast queues order mail aged --step 5m"),
    "queues spread": ("holdfast queues spread mail 3",),
    "queues purge": ("holdfast queues purge mail --dry-run", "holdfast queues purge mail --type tasks.resize --yes"),
    "schedules ls": ("holdfast schedules ls",),
    "schedules show": ("holdfast schedules show nightly",),
    "schedules next": ("holdfast schedules next nightly",),
    "schedules put": ("holdfast schedules put nightly --cron '0 3 * * *' --type tasks.report --app tasks:app",),
    "schedules edit": ("holdfast schedules edit nightly --cron '30 4 * * *'",),
    "schedules pause": ("holdfast schedules pause nightly",),
    "schedules resume": ("holdfast schedules resume nightly",),
    "schedules rm": ("holdfast schedules rm nightly",),
    "schedules run": ("holdfast schedules run nightly",),
    "workers ls": ("holdfast workers ls --watch",),
    "workers show": ("holdfast workers show web-1",),
    "workers concurrency": ("holdfast workers concurrency web-1 20", "holdfast workers concurrency --all 5"),
    "workers drain": ("holdfast workers drain web-1", "holdfast workers drain --all"),
    "workers resume": ("holdfast workers resume web-1",),
    "workers stop": ("holdfast workers stop web-1",),
    "partitions ls": ("holdfast partitions ls",),
    "token create": ("holdfast token create --scope enqueue:mail --expires 30d --note 'web shop'",),
    "token ls": ("holdfast token ls",),
    "token revoke": ("holdfast token revoke 3f9a1c",),
    "migrate": ("holdfast migrate --dry-run", "holdfast migrate --url postgresql://localhost/shop"),
    "doctor": ("holdfast doctor", "holdfast doctor --json"),
    "celery check": ("holdfast celery check proj:app",),
    "celery drain": ("holdfast celery drain redis://localhost:6379/0 --app tasks:app",),
    "celery beat": ("holdfast celery beat proj:app",),
    "bench": ("holdfast bench --quick", "holdfast bench --store postgres --targets"),
    "completion": (
        "holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast",
        "holdfast completion zsh > ~/.zfunc/_holdfast",
        "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    ),
}


def add_examples(command: click.Command, path: str) -> None:
    """Shows the examples of a command, and of all commands below it, at the end of its help."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            add_examples(below, f"{path} {name}")
    elif path in EXAMPLES and not command.epilog:
        lines = "\n".join(f"  {example}" for example in EXAMPLES[path])
        command.epilog = f"\b\nExamples:\n{lines}"
