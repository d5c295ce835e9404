"""Cursors that are numbers."""

from __future__ import annotations

import pytest

from holdfast.errors import BadOption
from holdfast.stores.decode import bad_cursor, number_in


def test_a_cursor_is_a_number() -> None:
    assert (number_in("0"), number_in("17"), number_in("9" * 18)) == (0, 17, 10**18 - 1)


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "²", "9" * 19])
def test_another_text_is_refused(cursor: str) -> None:
    with pytest.raises(BadOption, match="invalid cursor"):
        number_in(cursor)


def test_of_a_long_cursor_the_error_has_the_beginning() -> None:
    assert len(str(bad_cursor("x" * 10_000))) < 150
