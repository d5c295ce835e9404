"""Requests made from the OpenAPI document, sent to a real server, and all answers held against the document."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import schemathesis
from schemathesis import BaseSchema, Case, CheckContext, Response
from schemathesis.engine import events, from_schema
from schemathesis.generation.meta import REQUEST_SHAPE_PROBES, coverage_scenario
from schemathesis.hooks import GLOBAL_HOOK_DISPATCHER, HookContext

from tests.server.fuzz.tally import Finding, Tally
from tests.server.fuzz.world import World
from tests.server.setting import Client

log = logging.getLogger("fuzz")

#: An endless stream: tests/server/test_events.py reads it.
_STREAM: Final = "/v1/events"
_REFILL_EVERY: Final = 150
_TOLD_EVERY: Final = 2_000
#: More of them would be of the same kind.
_MOST_FINDINGS: Final = 50
_TIMEOUT_SECONDS: Final = 20
_ACCEPTED: Final = ["2xx", "404", "409"]
#: An address that is too long is refused before anybody looks at what is wrong in it.
_REFUSED: Final = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "429", "431"]


@schemathesis.check
def listed_status(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    """An answer has a status that its operation lists: "default" is for what lies between server and client."""
    listed = set(case.operation.responses.status_codes) - {"default"}
    is_probe = coverage_scenario(case) in REQUEST_SHAPE_PROBES
    assert is_probe or str(response.status_code) in listed, f"{response.status_code} is not one of {sorted(listed)}"


class Campaign:
    """Fuzzing of one server, round after round."""

    def __init__(self, port: int, token: str, seed: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._token = token
        self._seed = seed
        self._client = Client(port, token)
        self._world = World(self._client, seed)
        self._refill_at = 0
        self.tally = Tally()

    def run(self, requests: int, *, examples: int, coverage: bool = False) -> Tally:
        """At least so many requests, in whole rounds; with `coverage`, the edges of every schema first."""
        began = time.monotonic()
        with _hooks(self._before_call, self._after_call), closing(self._client):
            number = 0
            while self.tally.requests < requests and len(self.tally.findings) < _MOST_FINDINGS:
                self._round(self._seed + number, examples, coverage=coverage and number == 0)
                number += 1
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def _round(self, seed: int, examples: int, *, coverage: bool) -> None:
        stream = from_schema(self._schema(_settings(self._token, seed, examples, coverage=coverage))).execute()
        for event in stream:
            known = len(self.tally.findings)
            if isinstance(event, events.ScenarioFinished):
                self.tally.read(event)
            elif isinstance(event, events.NonFatalError):
                self.tally.findings.append(
                    Finding(event.label, "error", str(event.value), event.info.code_sample or "")
                )
            elif isinstance(event, events.FatalError):
                raise event.exception
            for finding in self.tally.findings[known:]:
                log.warning("%s", finding)
            if len(self.tally.findings) >= _MOST_FINDINGS:
                stream.stop()

    def _schema(self, settings: dict[str, Any]) -> BaseSchema:
        config = schemathesis.Config.from_dict(settings)
        return schemathesis.openapi.from_url(f"{self._url}/openapi.json", config=config).exclude(path=_STREAM)

    def _before_call(self, context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
        if self.tally.requests >= self._refill_at:
            self._refill_at = self.tally.requests + _REFILL_EVERY
            self._world.refill()
        self._world.furnish(case)

    def _after_call(self, context: HookContext, case: Case[Any], response: Response) -> None:
        self.tally.count(case, response)
        if self.tally.requests % _TOLD_EVERY == 0:
            log.info("%s requests, %s findings", f"{self.tally.requests:,}", len(self.tally.findings))
        self._world.learn(response)


@contextmanager
def _hooks(before_call: Callable[..., None], after_call: Callable[..., None]) -> Iterator[None]:
    """Has these two called around every request."""
    hooks = {"before_call": before_call, "after_call": after_call}
    for name, hook in hooks.items():
        GLOBAL_HOOK_DISPATCHER.register_hook_with_name(hook, name)
    try:
        yield
    finally:
        for hook in hooks.values():
            GLOBAL_HOOK_DISPATCHER.unregister(hook)


def _settings(token: str, seed: int, examples: int, *, coverage: bool) -> dict[str, Any]:
    """What schemathesis has in its configuration file."""
    return {
        "seed": seed,
        "headers": {"Authorization": f"Bearer {token}"},
        "continue-on-failure": True,
        "request-timeout": _TIMEOUT_SECONDS,
        "workers": 1,
        "generation": {"max-examples": examples, "no-shrink": True, "database": "none"},
        "phases": {
            "examples": {"enabled": True},
            "coverage": {"enabled": coverage},
            # Values from answers and lessons from refusals would make each run another one; the world has real ids.
            "fuzzing": {"extra-data-sources": {"responses": False}, "error-feedback": {"enabled": False}},
            "stateful": {"enabled": False},
        },
        "output": {"sanitization": {"enabled": False}},  # a curl line without the token would show nothing
        "cache": {"enabled": False},
        "checks": {
            "positive_data_acceptance": {"expected-statuses": _ACCEPTED},
            "negative_data_rejection": {"expected-statuses": _REFUSED},
        },
        # The store's own calls take records of our code, whose fields depend on each other in many ways.
        "operations": [
            {
                "include-tag": "store",
                "checks": {"positive_data_acceptance": {"expected-statuses": [*_ACCEPTED, "413", "422"]}},
            }
        ],
    }
