"""Ids that are known before the enqueue, and the hook that sees every call on its way."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import BadArguments, Holdfast, Prepared, UsageError
from holdfast.core.task import MAX_HEADERS
from holdfast.errors import BadOption
from holdfast.stores.contract import MAX_BATCH
from tests.producer.setting import Setting
from tests.servers.urls import fresh_store
from tests.support import KEYS

tenant: ContextVar[str] = ContextVar("tenant")


# -- ids -----------------------------------------------------------------------------------------------------


def test_the_id_of_a_prepared_call_is_known_before_the_task_exists(setting: Setting) -> None:
    prepared = setting.double.prepare(21)
    task_id = prepared.task_id
    assert setting.store.batches == []
    assert (prepared.task_id, prepared.enqueue().task_id) == (task_id, task_id)
    assert setting.app.handle(task_id).status().record.payload == b'{"number":21}'


def test_a_prepared_call_that_is_enqueued_again_is_the_same_task(setting: Setting) -> None:
    prepared = setting.double.prepare(21)

    async def again() -> str:
        return (await prepared.aenqueue()).task_id

    ids = [prepared.enqueue().task_id, asyncio.run(again())]
    ids += [handle.task_id for handle in setting.app.enqueue_many([prepared, prepared])]
    assert set(ids) == {prepared.task_id}


def test_two_prepared_calls_are_two_tasks(setting: Setting) -> None:
    first, second = setting.double.prepare(1), setting.double.prepare(1)
    assert first.task_id != second.task_id
    assert first.enqueue() != second.enqueue()


def test_a_repeat_is_the_same_task_where_arguments_are_encrypted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", KEYS)
    with Holdfast(fresh_store("sqlite", tmp_path)) as app:
        prepared = app.task(name="double")(lambda number: 2 * number).prepare(1)
        assert prepared.enqueue() == prepared.enqueue()


def test_a_known_request_gives_the_first_task_whatever_id_was_prepared(setting: Setting) -> None:
    first = setting.double.using(request_id="order-1").prepare(1)
    second = setting.double.using(request_id="order-1").prepare(1)
    assert first.task_id != second.task_id
    assert first.enqueue().task_id == second.enqueue().task_id == first.task_id


def test_a_call_of_no_app_says_so() -> None:
    with pytest.raises(UsageError, match="make it with prepare"):
        _ = Prepared("double", Holdfast("sqlite://").task(name="x")(print).options, b"{}", msgspec.json.decode).task_id


# -- the hook ------------------------------------------------------------------------------------------------


def test_every_way_to_enqueue_passes_the_hook_once_for_each_task(setting: Setting) -> None:
    seen: list[tuple[str, str, str]] = []

    @setting.app.outgoing
    def note(call: Prepared[Any]) -> None:
        seen.append((call.task_id, call.type, call.queue))
        call.add_headers({"tenant": tenant.get(), "trace": "2"})

    async def enqueue_async() -> list[Any]:
        return [
            await double.aenqueue(1),
            await double.prepare(1).aenqueue(),
            *await setting.app.aenqueue_many([double.prepare(1)]),
        ]

    double = setting.double.using(queue="mail", headers={"trace": "1", "of": "caller"})
    tenant.set("acme")
    handles = [double.enqueue(1), double.prepare(1).enqueue()]
    handles += setting.app.enqueue_many(double.prepare(1) for _ in range(MAX_BATCH + 1))
    handles += asyncio.run(enqueue_async())
    assert seen == [(handle.task_id, "double", "mail") for handle in handles]
    headers = {"trace": "2", "of": "caller", "tenant": "acme"}
    assert all(handles[n].status().headers == headers for n in (0, 1, 2, -3, -2, -1))


def test_hooks_run_in_the_order_of_their_declaration_in_the_thread_of_the_caller(setting: Setting) -> None:
    seen: list[Any] = []
    setting.app.outgoing(lambda call: call.add_headers({"tenant": "acme"}))
    setting.app.outgoing(lambda call: seen.append((dict(call.headers), threading.get_ident())))
    setting.double.enqueue(1)
    assert seen == [({"tenant": "acme"}, threading.get_ident())]


def test_what_a_hook_raises_reaches_the_caller_and_nothing_is_enqueued(setting: Setting) -> None:
    @setting.app.outgoing
    def refuse(call: Prepared[Any]) -> None:
        raise LookupError(f"no tenant for {call.type}")

    for enqueue in (
        lambda: setting.double.enqueue(1),
        lambda: setting.app.enqueue_many([setting.double.prepare(1)]),
        lambda: asyncio.run(setting.double.aenqueue(1)),
    ):
        with pytest.raises(LookupError, match="no tenant for double"):
            enqueue()
    assert setting.store.batches == []


def test_the_headers_of_a_hook_are_bounded_as_all_headers(setting: Setting) -> None:
    setting.app.outgoing(lambda call: call.add_headers({f"h{n}": "" for n in range(MAX_HEADERS + 1)}))
    with pytest.raises(BadOption, match=f"the limit is {MAX_HEADERS}"):
        setting.double.enqueue(1)
    with pytest.raises(BadOption, match="add_headers takes a mapping"):
        setting.double.prepare(1).add_headers("tenant")  # type: ignore[arg-type]


def test_a_hook_that_cannot_be_called_is_refused_at_its_declaration(setting: Setting) -> None:
    async def awaited(call: Prepared[Any]) -> None: ...

    for wrong in (awaited, lambda: None, "text"):
        with pytest.raises(BadOption, match="must be written as: def "):
            setting.app.outgoing(wrong)  # type: ignore[type-var]


def test_wrong_arguments_are_refused_before_the_hook_is_called(setting: Setting) -> None:
    seen: list[str] = []
    setting.app.outgoing(lambda call: seen.append(call.type))
    with pytest.raises(BadArguments):
        setting.double.enqueue("many")  # type: ignore[arg-type]
    assert seen == []
