"""Log lines: what looks like a secret is left out of them, whoever wrote them and however they fail."""

from __future__ import annotations

import json
import logging
import sys
import threading

import pytest

from holdfast.observe.logs import JsonLines, LogFormat, TextLines, set_up_logging

CANARY = "canary-7f3a"


def record(message: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    info = None
    if error:
        try:
            raise ValueError(f"password={CANARY}")
        except ValueError:
            info = sys.exc_info()
    return logging.LogRecord("shop.auth", logging.ERROR, "shop.py", 7, message, arguments, info)


@pytest.mark.parametrize("lines", [TextLines(), JsonLines()])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (record("password=%s", CANARY), "password=***"),
        (record(f"GET /x?access_token={CANARY}"), "access_token=***"),
        (record(f"redis://:{CANARY}@db"), "redis://***@db"),
        (record("%d", f"token={CANARY}"), "'%d' cannot be formatted"),
        (record("failed", error=True), "ValueError: password=***"),
        (record("hf_%s_%s", "0" * 12, "a" * 64), f"hf_{'0' * 12}_***"),
    ],
)
def test_a_line_has_no_secret(lines: logging.Formatter, given: logging.LogRecord, words: str) -> None:
    line = lines.format(given)
    assert CANARY not in line
    assert "a" * 64 not in line
    assert words in line


def test_a_line_that_names_its_task_does_not_repeat_it() -> None:
    record = logging.LogRecord("mail", logging.INFO, "mail.py", 1, "%s", ("parent[01a1] waits",), None)
    record.task_id, record.task_type = "01a1", "parent"
    assert TextLines().format(record).endswith("INFO    mail: parent[01a1] waits")
    record.args = ("sent",)
    assert TextLines().format(record).endswith("INFO    mail: sent [parent 01a1]")


def test_the_traceback_of_another_handler_is_not_taken_over() -> None:
    given = record("failed", error=True)
    assert CANARY in logging.Formatter().format(given)
    assert CANARY not in TextLines().format(given)


def test_names_of_loggers_and_users_stay() -> None:
    line = TextLines().format(record("on postgresql://app:***@db/shop"))
    assert line.endswith(" ERROR   shop.auth: on postgresql://app:***@db/shop")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_thread_that_fails_is_logged_as_all_else(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    set_up_logging("info", log_format)

    def fail() -> None:
        raise ValueError(f"token={CANARY}")

    try:
        thread = threading.Thread(target=fail, name="side")
        thread.start()
        thread.join()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    written = capsys.readouterr().err
    assert "thread side has ended with an error" in written
    assert "ValueError: token=***" in written
    if log_format == "json":
        assert json.loads(written)["logger"] == "holdfast.observe"
