"""The app of the fault tests: each task books one number, in a block that takes a while."""

from __future__ import annotations

from typing import Final

from holdfast import Holdfast, Retry, current

#: Blocks that were begun are counted by the sequence, which no rollback takes back.
TABLES: Final = """
CREATE TABLE bookings (number integer, fencing_token bigint);
CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL);
INSERT INTO accounts SELECT id, 0 FROM generate_series(0, 31) id;
CREATE SEQUENCE begun;
"""
#: Of a worker that stands still, the server ends half of the blocks; the others meet their lost claim when it wakes up.
_MAY_REST: Final = "SELECT set_config('idle_in_transaction_session_timeout', '0', true) WHERE %s %% 4 < 2"
_BOOK: Final = "INSERT INTO bookings SELECT %s, %s FROM nextval('begun')"
_REST: Final = "SELECT pg_sleep(random() * 0.04)"
#: Others who want the same account wait for the end of the transaction. Only in blocks that the server ends: behind the
#: others, everybody would wait for the sleeper.
_PAY: Final = "UPDATE accounts SET balance = balance + 1 WHERE id = %(n)s %% 32 AND %(n)s %% 4 >= 2"


async def book(number: int) -> int:
    """In a coroutine."""
    me = current()
    async with me.transaction() as conn:
        await conn.execute(_MAY_REST, (number,))
        await conn.execute(_BOOK, (number, me.fencing_token))
        await conn.execute(_REST)
        await conn.execute(_PAY, {"n": number})
        me.set_result(number)
    return number


def book_in_thread(number: int) -> int:
    """In a thread."""
    me = current()
    with me.transaction() as conn:
        conn.execute(_MAY_REST, (number,))
        conn.execute(_BOOK, (number, me.fencing_token))
        conn.execute(_REST)
        conn.execute(_PAY, {"n": number})
        me.set_result(number)
    return number


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store."""
    app = Holdfast(url, lease="2s", retry=Retry(max_attempts=100, base="50ms", cap="200ms"))
    app.task(name="book")(book)
    app.task(name="book_in_thread")(book_in_thread)
    return app


app = make_app()
