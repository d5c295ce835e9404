from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.core.names import check_queue, check_request_id, check_type
from holdfast.errors import BadName
from holdfast.stores.contract import MAINTENANCE_WAKEUP


@pytest.mark.parametrize("name", ["a", "default", "_x", "7", "app.tasks.resize", "a:b-c_d.e", "x" * 128])
@pytest.mark.parametrize("check", [check_queue, check_type])
def test_plain_names_are_taken(check: Callable[[str], str], name: str) -> None:
    assert check(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", ":a", "a b", "a\n", "ä", "a/b", "a,b", "a=b", "*", "x" * 129, None, 7, b"a", "x" * 10_000]
)
@pytest.mark.parametrize("check", [check_queue, check_type])
def test_other_names_are_refused_in_one_short_line(check: Callable[[object], str], name: object) -> None:
    with pytest.raises(BadName, match="is refused") as caught:
        check(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_the_bell_of_the_upkeep_can_never_be_a_queue() -> None:
    with pytest.raises(BadName):
        check_queue(MAINTENANCE_WAKEUP)


@pytest.mark.parametrize("request_id", ["order-42", "a/b?c=d#e", "!", "~" * 200])
def test_visible_ascii_is_a_request_id(request_id: str) -> None:
    assert check_request_id(request_id) == request_id


@pytest.mark.parametrize("request_id", ["", " ", "a b", "a\t", "é", "x" * 201, None, 42])
def test_other_request_ids_are_refused(request_id: object) -> None:
    with pytest.raises(BadName, match="request_id"):
        check_request_id(request_id)  # type: ignore[arg-type]
