"""The way to the primary among several servers."""

from __future__ import annotations

import psycopg

from holdfast.stores.postgres.lines import Line, NoPrimary, connected
from holdfast.stores.postgres.urls import Address, Login, PostgresSettings


class Way:
    """Connections to the primary among the servers of one login; the one that answered last is asked first."""

    def __init__(self, login: Login, settings: PostgresSettings) -> None:
        self._login = login
        self._settings = settings
        self._order = list(login.addresses)

    async def connect(self) -> Line:
        """A connection to the primary; `NoPrimary` if none of the servers is one that takes us."""
        reasons: list[tuple[Address, BaseException]] = []
        for address in list(self._order):
            try:
                return await connected(self._login, address, self._settings)
            except (psycopg.Error, OSError, TimeoutError) as error:
                reasons.append((address, error))
                self._ask_last(address)
            except BaseException:
                self._ask_last(address)  # our caller had no more time for a server that says nothing
                raise
        raise NoPrimary(reasons)

    def doubt(self) -> None:
        """Asks the others first from now on."""
        self._ask_last(self._order[0])

    def _ask_last(self, address: Address) -> None:
        self._order.remove(address)
        self._order.append(address)
