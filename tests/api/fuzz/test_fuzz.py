"""A short run of what `make fuzz` does for longer: the answers of a real gateway are what its document says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemathesis import BaseSchema

from tests.api.fuzz.campaign import Campaign
from tests.api.fuzz.gateway import check_aftermath, fuzzed_gateway
from tests.api.setting import sqlite_server


class _Lie(Campaign):
    """One operation, of whose answer the document has a field too many."""

    def _schema(self, settings: dict[str, Any]) -> BaseSchema:
        schema = super()._schema(settings).exclude(path_regex="^/(?!v1/whoami)")
        schema.raw_schema["components"]["schemas"]["Identity"]["required"].append("age")
        return schema


def test_answers_to_requests_made_from_the_document_are_as_it_says(tmp_path: Path) -> None:
    with fuzzed_gateway("sqlite", tmp_path) as gateway:
        token = gateway.token("admin")
        tally = Campaign(gateway.port, token, seed=1).run(300, examples=3)
        assert not tally.findings, "\n".join(map(str, tally.findings))
        assert tally.requests >= 300
        assert tally.succeeded.total() > 100
        assert check_aftermath(gateway, token) > 0


def test_an_answer_that_is_not_as_the_document_says_is_found(tmp_path: Path) -> None:
    with sqlite_server(tmp_path) as server:  # it lets everybody in, which is another thing to be found
        tally = _Lie(server.port, "no token", seed=1).run(1, examples=1)
    found = {finding.check for finding in tally.findings}
    assert found == {"response_schema_conformance", "ignored_auth"}
    assert all("curl -X GET" in finding.curl for finding in tally.findings)
