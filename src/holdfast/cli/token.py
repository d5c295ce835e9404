"""`holdfast token`."""

from __future__ import annotations

import click

from holdfast.admin import tokens
from holdfast.admin.tokens import ListedToken
from holdfast.cli import output
from holdfast.cli.listing import watched
from holdfast.cli.options import duration_type, iso_time, store_options, with_store
from holdfast.cli.tables import Column
from holdfast.clock import SystemClock
from holdfast.security.tokens import Rate
from holdfast.stores.contract import Store

_COLUMNS = (
    "id",
    Column("scopes", kind="wrapped"),
    Column("rate", 5),
    Column("created", 4),
    "expires",
    Column("used", 2),
    Column("note", 1, "long"),
)


@click.group(no_args_is_help=False)
def token() -> None:
    """Create, list and revoke tokens of the HTTP API."""


@token.command("create", short_help="Create a token and print it.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    metavar="SCOPE",
    help="Allow enqueue:QUEUE, work:QUEUE, read, manage or admin; QUEUE may end with *; repeatable.",
)
@click.option(
    "--expires",
    type=duration_type("--expires"),
    metavar="DURATION",
    help="Expire after this long, such as 30d.  [never]",
)
@click.option("--rate", type=Rate.parse, metavar="RATE", help="Limit requests: 100/s, 600/m, 10/h.  [no limit]")
@click.option("--note", default="", metavar="TEXT", help="Note on who uses it and for what.")
@store_options
def create(scopes: tuple[str, ...], expires: int | None, rate: Rate | None, note: str, url: str, as_json: bool) -> None:
    """Create a token and print it; only its hash is stored, so it cannot be shown again."""
    text = with_store(
        url,
        lambda store: tokens.create(
            store, scopes, now_ms=SystemClock().now_ms(), expires_in_ms=expires, rate=rate, note=note
        ),
    )
    if as_json:
        output.document({"token_id": text.token_id, "token": str(text), "scopes": scopes})
        return
    output.line(str(text))
    output.chatter(f"This is the only time that it is shown. To take it away: holdfast token revoke {text.token_id}")


@token.command("ls")
@watched
@store_options
def list_tokens(url: str, as_json: bool) -> None:
    """List tokens, newest first; secrets are not stored."""
    found = with_store(url, tokens.listed, must_exist=True)
    if as_json:
        output.document(found)
        return
    now_ms = SystemClock().now_ms()
    output.table(_COLUMNS, [_row(each, now_ms) for each in found], "There is no token.")


@token.command("revoke")
@click.argument("token_ids", nargs=-1, required=True, metavar="ID...")
@store_options
def revoke(token_ids: tuple[str, ...], url: str, as_json: bool) -> None:
    """Revoke tokens; running servers refuse them within five seconds."""

    async def take_away(store: Store) -> list[ListedToken]:
        return [await tokens.revoke(store, token_id) for token_id in token_ids]

    revoked = with_store(url, take_away, must_exist=True)
    if as_json:
        output.document(revoked)
        return
    for each in revoked:
        output.line(f"token {each.token_id} is revoked")


def _row(each: ListedToken, now_ms: int) -> list[object]:
    expired = each.expires_at_ms is not None and each.expires_at_ms <= now_ms
    return [
        each.token_id,
        " ".join(each.scopes),
        each.rate or "",
        _day(each.created_at_ms),
        "expired" if expired else _day(each.expires_at_ms),
        _day(each.used_at_ms),
        each.note,
    ]


def _day(time_ms: int | None) -> str:
    """To the minute: when it was used is known no better than to the hour."""
    return "" if time_ms is None else f"{iso_time(time_ms)[:16]}Z"
