"""The `holdfast` command."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import click

from holdfast.cli.examples import GROUPS, add_examples
from holdfast.errors import (
    HoldfastError,
    Refused,
    RequestConflict,
    UnknownSchedule,
    UnknownTask,
    UnknownToken,
    UnknownWorker,
    UsageError,
)
from holdfast.version import __version__

_INTERRUPTED = 130
#: Help is as wide as the terminal, up to this many columns.
_WIDEST_HELP = 100


class LazyCommand(NamedTuple):
    """Where a command lives, and what the help says of it without loading it."""

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """The top group: fast to start, quiet on Ctrl-C, never a traceback on bad input."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The commands in the order in which they were given."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, imported now; None if there is no such command."""
        if cmd_name not in self.lazy:
            return None
        entry = self.lazy[cmd_name]
        command = cast("click.Command", getattr(importlib.import_module(entry.module), entry.attribute))
        add_examples(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; one that does not exist is refused with the nearest that does."""
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.lazy, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise click.UsageError(f"No such command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The commands by what they are about, without importing any."""
        named = {name for names in GROUPS.values() for name in names}
        groups = {**GROUPS, "Other": [name for name in self.lazy if name not in named]}
        longest = max(map(len, self.lazy))
        for title, names in groups.items():
            known = [name for name in names if name in self.lazy]
            if known:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(longest), self.lazy[name].help) for name in known])

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Runs the command line and exits: 0 fine, 1 no, 2 wrong call, 130 interrupted."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            answer = super().main(args, prog_name or "holdfast", **{**extra, "standalone_mode": False})
        except HoldfastError as error:
            _end(one_line(str(error)), exit_code(error))
        except click.ClickException as error:
            _end(one_line(_with_hint(error)), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(_INTERRUPTED)
        sys.exit(answer if isinstance(answer, int) else 0)


def _end(line: str, code: int) -> NoReturn:
    click.echo(f"holdfast: {line}", err=True)
    sys.exit(code)


def _with_hint(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".").replace(". Did you mean", "; did you mean")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        see = f"see {error.ctx.command_path} --help"
        return f"{message} {see.capitalize()}" if message.endswith("?") else f"{message}; {see}"
    return message


# -- failures ------------------------------------------------------------------------------------------------


#: Wrong for what the store holds now, not in themselves: the same call may be right tomorrow.
_NO = (UnknownTask, UnknownSchedule, UnknownToken, UnknownWorker, Refused, RequestConflict)


def exit_code(error: HoldfastError) -> int:
    """2 for a usage error, 1 for any other failure, those of `_NO` included."""
    return 2 if isinstance(error, UsageError) and not isinstance(error, _NO) else 1


def one_line(message: str) -> str:
    """The message on one line, safe to print."""
    from holdfast.admin.inspect import printable

    return printable(" ".join(message.split()))


# -- main ----------------------------------------------------------------------------------------------------


_COMMANDS = {
    "init": LazyCommand("holdfast.cli.scaffold", "init", "Create a small project to start with."),
    "demo": LazyCommand(
        "holdfast.cli.demo", "demo", "Run a live demo: tasks are enqueued, run, retried and dead-lettered."
    ),
    "worker": LazyCommand("holdfast.cli.worker", "worker", "Run the tasks of an app."),
    "server": LazyCommand("holdfast.cli.server", "server", "Serve the store over HTTP."),
    "enqueue": LazyCommand("holdfast.cli.enqueue", "enqueue", "Enqueue a task."),
    "tasks": LazyCommand(
        "holdfast.cli.tasks", "tasks", "List, show, explain, prioritize, reschedule, rerun and cancel tasks."
    ),
    "dead": LazyCommand("holdfast.cli.dead", "dead", "List, show, replay and discard dead letters."),
    "queues": LazyCommand("holdfast.cli.queues", "queues", "List, pause, resume, order, spread and purge queues."),
    "schedules": LazyCommand(
        "holdfast.cli.schedules", "schedules", "List, create, change, pause, resume and run schedules."
    ),
    "workers": LazyCommand("holdfast.cli.workers", "workers", "List, show, drain, resume, stop and resize workers."),
    "partitions": LazyCommand("holdfast.cli.store", "partitions", "List partitions."),
    "token": LazyCommand("holdfast.cli.token", "token", "Create, list and revoke tokens of the HTTP API."),
    "migrate": LazyCommand("holdfast.cli.store", "migrate", "Create or upgrade the schema of a store."),
    "doctor": LazyCommand("holdfast.cli.store", "doctor", "Check the store, the workers and the tasks."),
    "celery": LazyCommand("holdfast.contrib.celery.command", "celery", "Move a Celery project to Holdfast."),
    "bench": LazyCommand("holdfast.bench.command", "bench", "Measure throughput and latency on this machine."),
    "completion": LazyCommand("holdfast.cli.scaffold", "completion", "Print the completion script of a shell."),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST_HELP},
)
@click.version_option(__version__, "--version", prog_name="holdfast", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Holdfast: a durable task queue.

    Every command takes --url (or HOLDFAST_URL) and --json, and prints errors to stderr.

    Exit codes: 0 success, 1 failure, 2 usage error.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


if __name__ == "__main__":
    main(prog_name="holdfast")
