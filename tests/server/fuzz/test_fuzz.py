"""A short run of what `make fuzz` does for longer: the answers of a real server are what its document says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemathesis import BaseSchema

from tests.server.fuzz.campaign import Campaign
from tests.server.fuzz.fuzzed_server import check_aftermath, fuzzed_server
from tests.server.fuzz.load import MAX_MEMORY_MB, WORKERS, run_load
from tests.server.setting import sqlite_server
from tests.servers.urls import fresh_store


class _Lie(Campaign):
    """One operation, of whose answer the document has a field too many."""

    def _schema(self, settings: dict[str, Any]) -> BaseSchema:
        schema = super()._schema(settings).exclude(path_regex="^/(?!v1/whoami)")
        schema.raw_schema["components"]["schemas"]["Identity"]["required"].append("age")
        return schema


def test_answers_to_requests_made_from_the_document_are_as_it_says(tmp_path: Path) -> None:
    with fuzzed_server("sqlite", tmp_path) as server:
        token = server.token("admin")
        tally = Campaign(server.port, token, seed=1).run(300, examples=3)
        assert not tally.findings, "\n".join(map(str, tally.findings))
        assert tally.requests >= 300
        assert tally.succeeded.total() > 100
        assert check_aftermath(server, token) > 0


def test_an_answer_that_is_not_as_the_document_says_is_found(tmp_path: Path) -> None:
    with sqlite_server(tmp_path) as server:  # it lets everybody in, which is another thing to be found
        tally = _Lie(server.port, "no token", seed=1).run(1, examples=1)
    found = {finding.check for finding in tally.findings}
    assert found == {"response_schema_conformance", "ignored_auth"}
    assert all("curl -X GET" in finding.curl for finding in tally.findings)


def test_large_bodies_of_one_token_do_not_keep_the_workers_of_another_from_renewing(tmp_path: Path) -> None:
    report = run_load(fresh_store("sqlite", tmp_path), tmp_path, seconds=6, lease_seconds=30)
    assert report.lost == 0, report
    assert report.renewals >= WORKERS, report
    assert report.memory_mb < MAX_MEMORY_MB, report
    assert {name for name, _ in report.sent} >= {"header bomb", "tasks", "tasks by the contract"}, report
