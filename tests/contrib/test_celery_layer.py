"""Celery's semantics on Holdfast: what runs how often, what handlers and signals see, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from holdfast.contrib.celery import (
    AsyncResult,
    Celery,
    Task,
    chain,
    chord,
    current_task,
    group,
    shared_task,
    signals,
    states,
)
from holdfast.contrib.celery.exceptions import ImproperlyConfigured, MaxRetriesExceededError, Retry, TaskRevokedError
from holdfast.contrib.celery.refusals import REFUSED_ATTRIBUTES, NotSupported
from holdfast.core.task import State
from holdfast.observe.task_log import ATTEMPTS_HEADER
from holdfast.testing import AppTest, in_memory


@pytest.fixture
def app() -> Celery:
    return Celery("test", holdfast_url="redis://never.invalid:1/0")


@pytest.fixture
def worker(app: Celery) -> Iterator[AppTest]:
    with in_memory(app.holdfast) as test:
        yield test
    app.close()


@pytest.fixture
def connected() -> Iterator[Any]:
    """Connects receivers until the end of the test."""
    made: list[tuple[signals.Signal, Any]] = []

    def connect(signal: signals.Signal, receiver: Any) -> None:
        made.append((signal, signal.connect(receiver)))

    yield connect
    for signal, receiver in made:
        signal.disconnect(receiver)


def test_an_exception_runs_once_and_is_raised_by_get(app: Celery, worker: AppTest) -> None:
    runs = []

    @app.task(name="fail")
    def fail() -> None:
        runs.append(1)
        raise ValueError("no")

    result = fail.delay()
    worker.advance("1h")
    assert len(runs) == 1
    assert (result.state, result.ready(), result.successful(), result.failed()) == (states.FAILURE, True, False, True)
    assert isinstance(result.result, ValueError)
    assert "ValueError: no" in (result.traceback or "")
    with pytest.raises(ValueError, match="no"):
        result.get()
    assert isinstance(result.get(propagate=False), ValueError)


def test_values_that_celery_restores_arrive_as_they_were(app: Celery, worker: AppTest) -> None:
    seen: list[Any] = []

    @app.task(name="types")
    def types(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return kwargs

    given = datetime(2031, 1, 1, tzinfo=UTC), UUID(int=3), Decimal("1.50"), b"raw", [1, {"a": None}]
    result = types.delay(*given, at=given[0])
    worker.run_due()
    assert seen == [(given, {"at": given[0]})]
    assert result.get() == {"at": given[0]}
    assert (result.args, result.kwargs) == (list(given), {"at": given[0]})
    with pytest.raises(TypeError, match="pickle is not supported"):
        types.delay(object())


def test_self_retry_waits_counts_and_gives_up(app: Celery, worker: AppTest) -> None:
    runs: list[tuple[int, datetime]] = []

    @app.task(name="later", bind=True, max_retries=2)
    def later(self: Task) -> None:
        runs.append((self.request.retries, worker.now))
        try:
            raise OSError("away")
        except OSError as error:
            raise self.retry(exc=error, countdown=60) from error

    result = later.delay()
    worker.run_due()
    assert result.state == states.RETRY
    worker.advance("10m")
    assert [retries for retries, _ in runs] == [0, 1, 2]
    assert [after - before for (_, before), (_, after) in pairwise(runs)] == [timedelta(minutes=1)] * 2
    with pytest.raises(OSError, match="away"):
        result.get()


def test_autoretry_backs_off_and_other_exceptions_do_not(app: Celery, worker: AppTest) -> None:
    runs: list[datetime] = []

    @app.task(
        name="auto", autoretry_for=(OSError,), retry_backoff=2, retry_jitter=False, retry_kwargs={"max_retries": 3}
    )
    def auto(error: str) -> None:
        runs.append(worker.now)
        raise OSError(error) if error == "away" else KeyError(error)

    auto.delay("away")
    worker.advance("1h")
    assert [(after - before).total_seconds() for before, after in pairwise(runs)] == [2, 4, 8]
    runs.clear()
    auto.delay("other")
    worker.advance("1h")
    assert len(runs) == 1


def test_more_retries_than_declared_are_refused_with_the_fix(app: Celery, worker: AppTest) -> None:
    @app.task(name="more", bind=True)
    def more(self: Task) -> None:
        self.retry(max_retries=50)

    result = more.delay()
    worker.run_due()
    with pytest.raises(ImproperlyConfigured, match="declare it with max_retries=50"):
        result.get()


def test_handlers_and_signals_are_called_around_a_run(app: Celery, worker: AppTest, connected: Any) -> None:
    seen: list[str] = []

    class Base(Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("call")
            return super().__call__(*args, **kwargs)

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            seen.append("before_start")

        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            seen.append(f"on_success {retval}")

        def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(f"on_failure {exc}")

        def on_retry(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(f"on_retry {exc}")

        def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(f"after_return {status}")

    @app.task(name="handled", base=Base, bind=True)
    def handled(self: Task, how: str) -> str:
        seen.append(f"run {self.request.retries} {current_task.name}")
        if how == "retry" and not self.request.retries:
            self.retry(exc=OSError("away"), countdown=1)
        if how == "fail":
            raise ValueError(how)
        return how

    connected(signals.task_prerun, lambda task_id, task, args, **_: seen.append(f"prerun {args}"))
    connected(signals.task_postrun, lambda state, retval, **_: seen.append(f"postrun {state}"))
    connected(signals.task_retry, lambda request, reason, **_: seen.append(f"task_retry {type(reason).__name__}"))
    connected(signals.task_failure, lambda exception, einfo, **_: seen.append(f"task_failure {exception}"))
    connected(signals.task_success, lambda result, **_: seen.append(f"task_success {result}"))

    handled.delay("retry")
    worker.advance("1m")
    begin = ["prerun ('retry',)", "before_start", "call"]
    retried = ["run 0 handled", "on_retry away", "task_retry Retry", "after_return RETRY", "postrun RETRY"]
    ended = ["run 1 handled", "on_success retry", "task_success retry", "after_return SUCCESS", "postrun SUCCESS"]
    assert seen == [*begin, *retried, *begin, *ended]
    seen.clear()
    handled.delay("fail")
    worker.run_due()
    assert seen[4:] == ["on_failure fail", "task_failure fail", "after_return FAILURE", "postrun FAILURE"]


def test_a_receiver_that_raises_does_not_stop_a_task(app: Celery, worker: AppTest, connected: Any) -> None:
    def broken(**_: Any) -> None:
        raise ValueError("broken receiver")

    connected(signals.task_prerun, broken)
    result = app.task(name="fine")(lambda: 3).delay()
    worker.run_due()
    assert result.get() == 3


def test_publish_signals_see_the_id_first_and_add_headers(app: Celery, worker: AppTest, connected: Any) -> None:
    seen: list[Any] = []

    @app.task(name="tenant", bind=True)
    def tenant(self: Task) -> Any:
        return self.request.headers, self.request.id, self.request.tenant

    def before(sender: str, headers: dict[str, Any], body: Any, **_: Any) -> None:
        seen.append((sender, headers["id"], AsyncResult(headers["id"], app).state, body[0]))
        headers["tenant"] = "berlin"

    connected(signals.before_task_publish, before)
    connected(signals.after_task_publish, lambda sender, headers, **_: seen.append((sender, headers["id"])))
    result = tenant.apply_async(headers={"shard": 3})
    assert seen == [("tenant", result.id, states.PENDING, ()), ("tenant", result.id)]
    worker.run_due()
    assert result.get() == [{"shard": 3, "tenant": "berlin"}, result.id, "berlin"]


def test_options_of_a_call_the_task_and_the_routes(app: Celery, worker: AppTest) -> None:
    app.conf.broker_url = "redis://localhost"
    app.conf.task_routes = {"mail.*": {"queue": "mail", "priority": 3}, "other": "second"}

    @app.task(name="mail.send")
    def send() -> None: ...

    @app.task(name="other", queue="own", priority=1)
    def other() -> None: ...

    def info(result: AsyncResult) -> Any:
        return app.handle(result.id).status()

    routed = info(send.delay())
    assert (routed.queue, routed.priority) == ("mail", -3)
    assert (info(other.delay()).queue, info(other.delay()).priority) == ("own", -1)
    assert info(other.apply_async(queue="third")).queue == "third"
    assert info(app.task(name="plain")(lambda: None).delay()).queue == "celery"
    called = info(send.apply_async(countdown=90, expires=60, soft_time_limit=3, time_limit=9))
    assert called.state is State.SCHEDULED
    policy = called.policy
    assert (policy.expires_ms, policy.timeout_ms, policy.hard_timeout_ms) == (60_000, 3_000, 9_000)
    by_name = info(app.send_task("elsewhere", (1,), {"a": 2}, queue="far"))
    assert (by_name.type, by_name.queue, by_name.args) == ("elsewhere", "far", {"args": [1], "kwargs": {"a": 2}})
    assert "elsewhere" not in app.holdfast.task_types


def test_an_id_of_the_callers_own_is_found_again_and_makes_no_second_task(app: Celery, worker: AppTest) -> None:
    @app.task(name="own", bind=True)
    def own(self: Task) -> Any:
        return self.request.id

    first, second = (own.apply_async(task_id="order-7") for _ in range(2))
    assert first == second == "order-7"
    assert len(worker.run_due()) == 1
    assert app.AsyncResult("order-7").get() == "order-7"
    assert app.AsyncResult("order-8").state == states.PENDING


def test_a_revoked_task_does_not_run(app: Celery, worker: AppTest) -> None:
    result = app.task(name="never")(lambda: 1).apply_async(countdown=60)
    app.control.revoke(result.id, terminate=True)
    worker.advance("2m")
    assert result.state == states.REVOKED
    with pytest.raises(TaskRevokedError):
        result.get()
    result.revoke()  # again: Celery does not tell either


def test_update_state_shows_while_the_task_runs(app: Celery, worker: AppTest) -> None:
    @app.task(name="progress", bind=True)
    def progress(self: Task) -> None:
        self.update_state(state="PROGRESS", meta={"done": 3})
        with pytest.raises(ValueError, match="the limit is"):
            self.update_state(state="PROGRESS", meta="x" * 1_000)

    result = progress.delay()
    worker.run_due()
    assert result.successful()


def test_eager_mode_runs_retries_and_propagates_as_it_is_told(app: Celery) -> None:
    app.conf.update(task_always_eager=True, holdfast_url=None)

    @app.task(bind=True, max_retries=2)
    def flaky(self: Task, until: int) -> int:
        if self.request.retries < until:
            self.retry(countdown=3600)
        return self.request.retries if self.request.is_eager else -1

    assert flaky.delay(2).get() == 2
    assert flaky.apply_async((1,), task_id="mine").id == "mine"
    failed = flaky.delay(5)
    assert (failed.state, failed.successful()) == (states.FAILURE, False)
    with pytest.raises(MaxRetriesExceededError):
        failed.get()
    app.conf.task_eager_propagates = True
    with pytest.raises(MaxRetriesExceededError):
        flaky.delay(5)
    assert flaky(0) == -1


def test_a_retry_outside_of_a_run_raises_its_cause(app: Celery) -> None:
    @app.task(bind=True)
    def later(self: Task) -> None:
        raise self.retry(exc=OSError("away"))

    with pytest.raises(OSError, match="away"):
        later()
    assert issubclass(Retry, Exception)


def test_shared_tasks_belong_to_the_current_app(app: Celery, worker: AppTest) -> None:
    @shared_task(name="shared.add")
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert add.app is app
    assert app.tasks["shared.add"] is add
    result = add.delay(1, b=2)
    worker.run_due()
    assert result.get() == 3
    with pytest.raises(TypeError, match=r"shared.add\(\) missing a required argument: 'a'"):
        add.delay()


def refused_calls(app: Celery) -> list[tuple[Any, str]]:
    add = app.task(name="add")(lambda a: a)
    return [
        (lambda: chain(add.s(1)), "chain(): workflows"),
        (lambda: group([add.s(1)]), "group(): workflows"),
        (lambda: chord([add.s(1)]), "chord(): workflows"),
        (lambda: add.s(1) | add.s(2), "a | b: workflows"),
        (lambda: add.chunks([1], 1), "add.chunks(): enqueue one task per chunk"),
        (lambda: add.apply_async((1,), link=add.s(2)), "add.apply_async: link: workflows"),
        (lambda: add.apply_async((1,), serializer="pickle"), "serializer: only JSON"),
        (lambda: add.retry(args=(2,)), "retry(args=…): a retry keeps"),
        (lambda: app.control.broadcast("x"), "app.control.broadcast: no control commands"),
        (lambda: app.conf.update(task_serializer="pickle"), "task_serializer: 'pickle': only JSON"),
        (lambda: app.task(rate_limit="3/s")(lambda: 1), "rate_limit: no rate limits"),
    ]


@pytest.mark.parametrize("number", range(11))
def test_what_cannot_be_kept_is_refused_in_one_line(app: Celery, number: int) -> None:
    call, expected = refused_calls(app)[number]
    with pytest.raises(NotSupported) as refused:
        call()
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in REFUSED_ATTRIBUTES.items() for name in names]
)
def test_an_attribute_that_is_not_kept_is_refused_in_one_line(app: Celery, kind: str, name: str) -> None:
    @app.task(name="add")
    def add() -> None: ...

    found = {"app": app, "task": add, "result": AsyncResult("0" * 32, app), "signature": add.s()}[kind]
    with pytest.raises(NotSupported, match=f"^{kind}.{name}: [^\n]+$"):
        getattr(found, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        found.nothing  # noqa: B018


def test_signatures_are_made_by_name_and_copied(app: Celery, worker: AppTest) -> None:
    @app.task(name="add")
    def add(*numbers: int, **more: int) -> int:
        return sum(numbers) + sum(more.values())

    known = app.signature("add", args=(1,), kwargs={"more": 2})
    result, copied = known.delay(), known.clone((10,), {"other": 20}, queue="sums").delay()
    elsewhere = app.signature("elsewhere.add", (1,)).delay()
    frozen = add.si(1).clone((2,)).delay()
    worker.run_due()
    assert (result.get(), copied.get(), copied.queue, frozen.get()) == (3, 33, "sums", 1)
    assert (elsewhere.name, elsewhere.state) == ("elsewhere.add", states.PENDING)
    assert known.args == (1,), "a copy leaves it as it is"
    with pytest.raises(NotSupported, match=r"elsewhere\.add\.apply\(\)"):
        app.signature("elsewhere.add").apply()


def test_now_is_in_the_time_zone_of_the_settings() -> None:
    now = Celery("test", timezone="Asia/Tokyo").now()
    assert str(now.tzinfo) == "Asia/Tokyo"
    assert abs((now - datetime.now(UTC)).total_seconds()) < 60


def test_a_task_carries_the_attempts_that_log_lines_count(app: Celery, worker: AppTest) -> None:
    headers = []

    @app.task(name="flaky", bind=True, max_retries=1)
    def flaky(self: Task) -> None:
        headers.append(self.request.headers)

    result = flaky.delay()
    assert app.handle(result.id).status().headers[ATTEMPTS_HEADER] == "2"
    worker.run_due()
    assert headers == [{}], "the task itself does not see it"


def test_an_async_task_and_a_missing_url_are_refused_with_the_fix() -> None:
    app = Celery("bare")

    async def fetch() -> None: ...

    with pytest.raises(NotSupported, match="an `async def` is no task of Celery's"):
        app.task(fetch)
    with pytest.raises(ImproperlyConfigured, match="set holdfast_url"):
        app.task(name="plain")(lambda: None).delay()


def test_settings_come_from_every_source(app: Celery) -> None:
    class Source:
        CELERY_TASK_ALWAYS_EAGER = True
        CELERY_TIMEZONE = "Europe/Berlin"
        OTHER = 1

    app.config_from_object(Source, namespace="CELERY")
    assert (app.conf.task_always_eager, app.conf["timezone"]) == (True, "Europe/Berlin")
    assert app.conf.get("other") is None
    app.config_from_object({"CELERYBEAT_SCHEDULE": {"a": {}}, "task_default_queue": "q"})
    assert (app.conf.beat_schedule, app.conf.task_default_queue) == ({"a": {}}, "q")
    with pytest.raises(AttributeError, match="there is no setting 'nonsense'"):
        _ = app.conf.nonsense
