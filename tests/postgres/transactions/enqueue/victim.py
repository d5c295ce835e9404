"""A process that writes orders and their tasks, one transaction after the other, until it is killed.

Every name that begins with `no` belongs to what was taken back. What was committed is told on the output.
"""

from __future__ import annotations

import itertools
import os
import random
import sys

from tests.postgres.transactions.enqueue.sessions import Writer, opened
from tests.postgres.transactions.enqueue.shop import Shop, make_app


def write(shop: Shop, session: Writer, name: str) -> None:
    """The row and its task, in either order."""
    task_first = random.random() < 0.5
    if task_first:
        session.enqueue(shop.ship, name)
    session.execute(f"INSERT INTO orders VALUES ('{name}')")
    if not task_first:
        session.enqueue(shop.ship, name)


def one_transaction(shop: Shop, session: Writer, name: str) -> None:
    """A commit or a rollback, with something undone before it or not."""
    if random.random() < 0.3:
        write(shop, session, f"{name}-before")
        session.savepoint()
        write(shop, session, f"no-{name}")
        session.undo()
    if random.random() < 0.2:
        write(shop, session, f"no-{name}")
        session.rollback()
        return
    write(shop, session, name)
    session.commit()
    os.write(1, f"{name}\n".encode())


def main(kind: str, url: str, first_name: str) -> None:
    """Goes on for ever."""
    with make_app(url) as app, opened(kind, url) as session:
        shop = Shop(app, url)
        for n in itertools.count():
            one_transaction(shop, session, f"{first_name}-{n}")


if __name__ == "__main__":
    main(*sys.argv[1:])
