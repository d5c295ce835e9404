"""What a token allows: scopes, some of them for one queue or for all whose names begin alike."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from holdfast.core.names import check_queue
from holdfast.errors import BadName, BadOption


class Scope(StrEnum):
    """What a caller may do; the first two are given for a queue, or for all."""

    ENQUEUE = "enqueue"
    WORK = "work"
    READ = "read"
    MANAGE = "manage"
    ADMIN = "admin"


#: Those that are given for queues.
OF_QUEUES: Final = frozenset({Scope.ENQUEUE, Scope.WORK})
#: What else a scope allows. A client that manages tasks has to see them.
_INCLUDED: Final = {Scope.ADMIN: frozenset(Scope), Scope.MANAGE: frozenset({Scope.READ})}
_FORMS: Final = "enqueue:QUEUE, work:QUEUE, read, manage or admin; QUEUE may end with *"


class Scopes:
    """The scopes of one token, read once and asked often."""

    __slots__ = ("_held", "_names", "_prefixes", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        #: As they are written: `enqueue:images`, `read`.
        self.texts = tuple(dict.fromkeys(texts))
        parsed = [parse_scope(text) for text in self.texts]
        given = frozenset(scope for scope, _ in parsed)
        self._held = given.union(*(_INCLUDED.get(scope, frozenset()) for scope in given))
        queues = [*parsed, *((scope, "*") for scope in OF_QUEUES if Scope.ADMIN in given)]
        self._names = {scope: {queue for of, queue in queues if of is scope} for scope in OF_QUEUES}
        self._prefixes = {
            scope: tuple(queue[:-1] for queue in names if queue.endswith("*")) for scope, names in self._names.items()
        }

    def may(self, scope: Scope, queue: str | None = None) -> bool:
        """Whether the scope is given, for this queue, or with None for any queue at all."""
        if scope not in self._held or queue is None or scope not in OF_QUEUES:
            return scope in self._held
        return queue in self._names[scope] or queue.startswith(self._prefixes[scope])

    def may_everywhere(self, scope: Scope) -> bool:
        """Whether the scope is given for all queues, also for those that there are not yet."""
        return scope in self._held and (scope not in OF_QUEUES or "" in self._prefixes[scope])


def parse_scope(text: str) -> tuple[Scope, str]:
    """The scope and the queues that it is given for (empty for one that is not for queues), or a `BadOption`."""
    name, colon, queue = text.partition(":")
    try:
        scope = Scope(name)
    except ValueError:
        raise BadOption(f"scope: {text!r:.80} is refused: write {_FORMS}") from None
    if scope not in OF_QUEUES:
        if colon:
            raise BadOption(f"scope: {text!r:.80} is refused: {scope} is not for one queue; write {scope}")
        return scope, ""
    if not queue:
        raise BadOption(f"scope: {text!r:.80} is refused: write {scope}:QUEUE, or {scope}:* for all queues")
    try:
        if queue != "*":
            check_queue(queue.removesuffix("*"))
    except BadName as error:
        raise BadOption(f"scope: {text!r:.80} is refused: {error}") from None
    return scope, queue
