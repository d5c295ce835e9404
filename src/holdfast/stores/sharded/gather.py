"""Calls to several partitions at once, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)


async def together(calls: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer | Exception]:
    """All answers, errors among them; every call has ended when this returns."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, Exception):
            raise answer
    return answers  # type: ignore[return-value]  # the others were raised


async def all_of(calls: Mapping[Key, Awaitable[Answer]]) -> dict[Key, Answer]:
    """The answers by their keys; the first error is raised when all calls have ended, not while some go on."""
    if len(calls) <= 1:
        return {n: await call for n, call in calls.items()}
    answers = await together(awaited(call) for call in calls.values())
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return dict(zip(calls, answers, strict=True))  # type: ignore[arg-type]  # errors were raised


async def awaited(call: Awaitable[Answer]) -> Answer:
    """The answer, as a coroutine."""
    return await call


def in_order(groups: Mapping[int, Sequence[int]], answers: Mapping[int, Sequence[Answer]]) -> list[Answer]:
    """The answers of the partitions, in the order of the batch."""
    by_place = {place: answer for n, group in groups.items() for place, answer in zip(group, answers[n], strict=True)}
    return [by_place[place] for place in range(len(by_place))]
