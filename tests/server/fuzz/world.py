"""What is in the store while it is fuzzed: requests that are about nothing only ever show that nothing is not found."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from schemathesis import Case, Response
from schemathesis.core.parameters import ParameterLocation

from tests.server.fuzz.sense import sensible_address, sensible_body, sensible_query
from tests.server.setting import Client

_QUEUES: Final = ("images", "mails", "reports")
#: A queue that hardly any request names, so that what is in it can be claimed.
_HELD: Final = "held"
_TYPES: Final = ("resize", "send", "report")
_WORKERS: Final = ("node-1", "node-2")
_SCHEDULES: Final = ("nightly", "hourly")
#: Lists, and what each of their texts is.
_PLURALS: Final = {"task_ids": "task_id", "queues": "queue", "wakeups": "queue"}
#: Of each kind, the newest.
_REMEMBERED: Final = 100
#: One request out of so many is about what was drawn.
_LEFT_ALONE: Final = 4

#: A task and the token of its claim.
_Claim = tuple[str, str]


class World:
    """Tasks, claims, dead letters, schedules and workers that are really there."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = Random(seed)
        self._tasks: deque[str] = deque(maxlen=_REMEMBERED)
        self._claims: deque[_Claim] = deque(maxlen=_REMEMBERED)
        self._claim_ids: deque[str] = deque(maxlen=_REMEMBERED)
        self._known: Mapping[str, Sequence[str]] = {
            "task_id": self._tasks,
            "claim_id": self._claim_ids,
            "queue": _QUEUES,
            "worker_id": _WORKERS,
            "name": _SCHEDULES,
        }

    # -- what is there -------------------------------------------------------------------------------------------

    def refill(self) -> None:
        """Puts back what requests have used up: in each queue, tasks that wait, run and have failed for good."""
        for queue in _QUEUES:
            self._post(f"/v1/queues/{queue}/resume", {})
            self._post("/v1/tasks", {"tasks": [{**task, "queue": queue} for task in self._new_tasks()]})
            wanted = {"worker_id": "node-1", "queues": [queue], "max_tasks": 4, "lease": "1m"}
            self._post("/v1/reserve", wanted)
        self._post(f"/v1/queues/{_HELD}/resume", {})
        for _ in range(4):
            task_id, token = self._new_claim()
            error = {"type": "builtins.ValueError", "message": "bad luck"}
            self._post(f"/v1/tasks/{task_id}/fail", {"token": token, "error": error, "retryable": False})
        for name in _SCHEDULES:
            made = self._client.send("PUT", f"/v1/schedules/{name}", {"type": "report", "every": "1h"})
            assert made.status in {200, 409}, made  # a request may have made it one that code declares
        for worker_id in _WORKERS:
            self._post(f"/v1/workers/{worker_id}/announce", {"queues": list(_QUEUES), "types": list(_TYPES)})

    def learn(self, response: Response) -> None:
        """Remembers what an answer tells of."""
        is_json = "json" in response.headers.get("content-type", [""])[0]
        if 200 <= response.status_code < 300 and is_json:
            self._read(response.json())

    def _new_tasks(self) -> list[dict[str, Any]]:
        now = [{"type": each, "arguments": {"number": 7}, "retry": {"base": 0}} for each in _TYPES]
        order = f"order-{self._random.randrange(50)}"
        return [*now, {"type": "send", "delay": "1h"}, {"type": "add", "request_id": order}]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._client.send("POST", path, body)
        assert answer.status in {200, 201}, (path, answer)
        self._read(answer.json)
        return answer.json

    def _read(self, answer: Any) -> None:
        for each in answer if isinstance(answer, list) else [answer]:
            if not isinstance(each, dict):
                continue
            task_id, token, claim_id = each.get("task_id"), each.get("token"), each.get("claim_id")
            if isinstance(task_id, str):
                self._tasks.append(task_id)
                if isinstance(token, str):
                    self._claims.append((task_id, token))
            if isinstance(claim_id, str):
                self._claim_ids.append(claim_id)
            self._read(each.get("tasks"))

    # -- what requests are about ---------------------------------------------------------------------------------

    def furnish(self, case: Case[Any]) -> None:
        """Gives well-formed requests sense, and has most requests be about something that is there."""
        if case.meta is None:
            return
        positive = case.meta.generation.mode.is_positive
        if positive:
            case.body = sensible_body(case.operation.definition.raw["operationId"], case.body, self._random)
            case.query = sensible_query(case.query or {})
            case.path_parameters = sensible_address(case.path_parameters or {})
        if not self._random.randrange(_LEFT_ALONE):
            return
        needs_claim = positive and isinstance(case.body, dict) and "token" in case.body
        claim = self._new_claim() if needs_claim and self._random.randrange(2) else self._claim()
        if case.path_parameters and not case.meta.is_negative_at(ParameterLocation.PATH):
            case.path_parameters = self._address(case, claim)
        if positive:
            case.body = self._furnished(case.body, claim)

    def _claim(self) -> _Claim:
        """One that was current once, and may have been settled since."""
        return self._random.choice(self._claims)

    def _new_claim(self) -> _Claim:
        self._post(f"/v1/queues/{_HELD}/tasks", {"type": "add"})
        tasks = self._post("/v1/reserve", {"worker_id": "node-1", "queues": [_HELD], "lease": "1m"})["tasks"]
        return (tasks[0]["task_id"], tasks[0]["token"]) if tasks else self._claim()  # a request may have paused it

    def _address(self, case: Case[Any], claim: _Claim) -> dict[str, Any]:
        held = isinstance(case.body, dict) and "token" in case.body
        return {
            name: claim[0] if held and name == "task_id" else self._of(name, value)
            for name, value in case.path_parameters.items()
        }

    def _furnished(self, value: Any, claim: _Claim) -> Any:
        if isinstance(value, list):
            return [self._furnished(each, self._claim()) for each in value]
        if not isinstance(value, dict):
            return value
        return {name: self._field(name, each, value, claim) for name, each in value.items()}

    def _field(self, name: str, value: Any, whole: dict[str, Any], claim: _Claim) -> Any:
        if isinstance(value, str):
            if "token" in whole and name in {"task_id", "token"}:
                return claim[name == "token"]
            is_new = name == "task_id" and "type" in whole
            return value if is_new else self._of(name, value)
        if name in _PLURALS and isinstance(value, list):
            return [self._of(_PLURALS[name], each) if isinstance(each, str) else each for each in value]
        return self._furnished(value, claim)

    def _of(self, name: str, value: Any) -> Any:
        known = self._known.get(name)
        return self._random.choice(known) if known else value
