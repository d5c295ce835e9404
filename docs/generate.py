"""Writes the parts of the docs that the code knows better: `make docs`. A test fails when they are out of date.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from holdfast import errors
from holdfast.cli.examples import EXAMPLES
from holdfast.cli.main import main as command_line
from holdfast.core.lifecycle import TRANSITIONS, Event
from holdfast.core.task import FINAL_STATES, State
from holdfast.server.app import ROUTES
from holdfast.server.auth import ANYBODY_KNOWN
from holdfast.stores.remote.problems import KINDS

DOCS = Path(__file__).resolve().parent
_PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with each of its generated parts made anew."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", text)


def pages() -> list[Path]:
    """Every page that has a generated part."""
    return [path for path in sorted(DOCS.rglob("*.md")) if _PART.search(path.read_text(encoding="utf-8"))]


def transition_table() -> str:
    """The one table, a row for each of its pairs."""
    rows = [
        f"| `{state}` | `{event}` | {f'`{to}`' if to else 'deleted'} |" for (state, event), to in TRANSITIONS.items()
    ]
    return "\n".join(["| in state | event | leads to |", "|---|---|---|", *rows, ""])


def transition_picture() -> str:
    """The same table as a Mermaid diagram."""
    arrows: dict[tuple[State, State | None], list[Event]] = {}
    for (state, event), to in TRANSITIONS.items():
        if to is not state:
            arrows.setdefault((state, to), []).append(event)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> ready", "    [*] --> scheduled"]
    for (state, to), events in arrows.items():
        lines.append(f"    {state} --> {to or '[*]'}: {', '.join(events)}")
    lines += [f"    {state} --> [*]" for state in State if state in FINAL_STATES and not _leaves(state)]
    return "\n".join([*lines, "```", ""])


def error_table() -> str:
    """Every error class with its base, its meaning, and whether a retry can succeed."""
    rows = []
    for name, cls in _error_classes():
        again = "yes" if cls.retryable else "no"
        rows.append(f"| `{name}` | `{cls.__bases__[0].__name__}` | {inspect.getdoc(cls)} | {again} |")
    return "\n".join(["| class | base | meaning | retryable |", "|---|---|---|---|", *rows, ""])


def error_tree() -> str:
    """The tree from the top of errors.py."""
    lines = (errors.__doc__ or "").splitlines()
    return "\n".join(["```text", *(line for line in lines[2:] if line.strip()), "```", ""])


def command_reference() -> str:
    """Every command with its arguments and options, as click knows them."""
    return "\n".join(_command("holdfast", command_line, click.Context(command_line, info_name="holdfast")))


def route_table() -> str:
    """Every route of the public HTTP API, the scopes that allow it, and what it does."""
    rows = []
    for route in ROUTES:
        scopes = ", ".join(f"`{scope}`" for scope in route.rule.scopes)
        allowed = "no token" if route.rule.public else "any token" if route.rule == ANYBODY_KNOWN else scopes
        if route.tag != "store":
            rows.append(f"| `{route.method} {route.path}` | {allowed} | {inspect.getdoc(route.handler)} |")
    return "\n".join(["| route | scope | what it does |", "|---|---|---|", *rows, ""])


def problem_table() -> str:
    """Every kind of problem, and the error class that a client in Python gets for it."""
    rows = []
    for kind in sorted(KINDS, key=lambda kind: (kind.status, kind.name)):
        cls = f"`{kind.error.__name__}`" if kind.error else ""
        again = "" if kind.retry_after is None else f"after {kind.retry_after} s"
        rows.append(f"| {kind.status} | `{kind.name}` | {kind.title} | {cls} | {again} |")
    return "\n".join(["| status | type | meaning | in Python | retry |", "|---|---|---|---|---|", *rows, ""])


def _command(path: str, command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _command(f"{path} {name}", below, click.Context(below, context, info_name=name))
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"### `{path}`", "", f"`{path} {usage}`", "", inspect.cleandoc(command.help or ""), "")
    examples = EXAMPLES.get(path.removeprefix("holdfast "), ())
    if examples:
        yield from ("```text", *examples, "```", "")
    options = [option for option in command.params if isinstance(option, click.Option)]
    if options:
        yield from ("| option | what it does |", "|---|---|", *(_option(option, context) for option in options), "")


def _option(option: click.Option, context: click.Context) -> str:
    left, right = option.get_help_record(context) or ("/".join(option.opts), option.help or "")
    cells = (f"`{left}`", " ".join(right.split()))
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _error_classes() -> list[tuple[str, type[errors.HoldfastError]]]:
    classes = inspect.getmembers(errors, inspect.isclass)
    ours = [(name, cls) for name, cls in classes if issubclass(cls, errors.HoldfastError)]
    return sorted(ours, key=lambda item: inspect.getsourcelines(item[1])[1])


def _leaves(state: State) -> bool:
    return any(known is state for known, _ in TRANSITIONS)


PARTS: dict[str, Callable[[], str]] = {
    "transitions": transition_table,
    "picture": transition_picture,
    "errors": error_table,
    "error-tree": error_tree,
    "commands": command_reference,
    "routes": route_table,
    "problems": problem_table,
}


if __name__ == "__main__":
    for each in pages():
        each.write_text(page(each.read_text(encoding="utf-8")), encoding="utf-8")
