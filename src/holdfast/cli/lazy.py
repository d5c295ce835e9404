"""A command group that imports a command only when it is called, and turns errors into one line."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import click

from holdfast.cli.failures import exit_code, one_line
from holdfast.errors import HoldfastError

_INTERRUPTED = 130


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
        return cast("click.Command", getattr(importlib.import_module(entry.module), entry.attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.lazy.items()])

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
    message = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{message}; see {error.ctx.command_path} --help"
    return message
