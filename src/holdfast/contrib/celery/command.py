"""`holdfast celery`: check a Celery project, drain its queues, convert its beat."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli import output
from holdfast.cli.options import json_option, with_store
from holdfast.core.names import check_queue
from holdfast.errors import StoreUnavailable
from holdfast.stores.open import redacted
from holdfast.stores.urls import hidden

_app_option = click.option(
    "--app",
    "reference",
    envvar="HOLDFAST_APP",
    required=True,
    metavar="MODULE:APP",
    help="Enqueue into the store of this app: a Celery of holdfast.contrib.celery, or a Holdfast app. Also read "
    "from HOLDFAST_APP.",
)


@click.group(no_args_is_help=False)
def celery() -> None:
    """Move a Celery project to Holdfast."""


@celery.command("check")
@click.argument("reference", metavar="MODULE:APP")
@json_option
@click.pass_context
def check(ctx: click.Context, reference: str, as_json: bool) -> None:
    """List what is refused in a Celery project.

    Reads the Python files below the current folder, imports nothing, and counts what works. Exits with 1 if anything
    is refused.
    """
    from holdfast.contrib.celery.check import check_project, rows, summary

    findings = check_project(reference, Path.cwd())
    if as_json:
        found = [asdict(each) for each in findings.found]
        output.document({"files": findings.files, "works": dict(findings.works), "found": found})
    else:
        for place, verdict, text in rows(findings):
            output.line(f"{place}: {verdict}: {text}")
        output.line(summary(findings))
    ctx.exit(1 if findings.refused else 0)


@celery.command("drain")
@click.argument("broker", metavar="BROKER_URL")
@_app_option
@click.option("--queues", default="celery", show_default=True, metavar="NAMES", help="Move these queues, by comma.")
@click.option("--key-prefix", default="", metavar="TEXT", help="global_keyprefix of Celery's broker_transport_options.")
@click.option("--dry-run", is_flag=True, help="Count what would be moved and what stays, and change nothing.")
@json_option
@click.pass_context
def drain(
    ctx: click.Context, broker: str, reference: str, queues: str, key_prefix: str, dry_run: bool, as_json: bool
) -> None:
    """Move Celery's messages from Redis to Holdfast.

    Each task keeps its Celery id as request_id, and its ETA. Messages that only Celery can handle stay in their queue.
    After a crash, run the same command again: it continues, and enqueues nothing twice. Exits with 1 if messages stay.
    """
    try:
        import redis
    except ImportError:
        raise click.ClickException("celery drain needs the redis package; run: pip install redis hiredis") from None
    from holdfast.contrib.celery.drain import Drain, connect

    target = load_target(reference)
    names = [check_queue(name.strip()) for name in queues.split(",")]
    moving = Drain(connect(broker), target, prefix=key_prefix)
    try:
        for name in names:
            moving.look(name) if dry_run else moving.queue(name)
    except redis.RedisError as error:
        raise StoreUnavailable(
            f"Celery's broker at {hidden(broker)} failed: {error}; run the same command again, it continues"
        ) from None
    finally:
        target.app.close()
    _print(moving.report, target.app, dry_run, as_json)
    ctx.exit(1 if moving.report.left else 0)


def load_target(reference: str) -> Any:
    """The app that takes over the messages."""
    from holdfast.contrib.celery.drain import Target
    from holdfast.worker.loading import load_app, load_object

    return Target(load_app(reference), celery=not isinstance(load_object(reference), Holdfast))


def _print(report: Any, app: Holdfast, dry_run: bool, as_json: bool) -> None:
    if as_json:
        shown = [dict(zip(("queue", "id", "task", "reason"), each, strict=True)) for each in report.shown]
        left = {"left": report.left.total(), "reasons": dict(report.left), "shown": shown}
        output.document({"moved": report.moved, "expired": report.expired, **left})
        return
    for queue, message_id, task, reason in report.shown:
        output.line(f"stays in {queue}: {task or 'a message'} {message_id}: {reason}".replace("  ", " "))
    more = report.left.total() - len(report.shown)
    if more > 0:
        output.line(f"… and {more:,} more")
    verb = "would be moved" if dry_run else "moved"
    expired = f", {report.expired:,} expired" if report.expired else ""
    output.line(f"{report.moved:,} {verb} to {redacted(app.url)}{expired}, {report.left.total():,} left for Celery")


@celery.command("beat")
@click.argument("reference", metavar="MODULE:APP")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@json_option
@click.pass_context
def beat(ctx: click.Context, reference: str, dry_run: bool, as_json: bool) -> None:
    """Convert Celery's beat to schedules.

    Reads beat_schedule, add_periodic_task and the tables of django-celery-beat.
    Run it again after a change: what is the same stays, what is gone is removed, other schedules are not touched. Stop
    Celery's beat first. Exits with 1 if an entry is refused.
    """
    from holdfast.contrib.celery.beat import convert, entries_of, load

    app = load(reference)
    entries = entries_of(app)
    plan = with_store(app.store_app().url, lambda store: convert(app, entries, store, reference, dry_run=dry_run))
    if as_json:
        output.document([asdict(step) for step in plan.steps])
    for step in plan.steps if not as_json else ():
        output.line(f"{step.verb:<9}{step.name}: {step.text}")
    if not plan.steps:
        output.chatter("There are no entries in beat_schedule and no periodic tasks in the database.")
    ctx.exit(1 if plan.refused else 0)
