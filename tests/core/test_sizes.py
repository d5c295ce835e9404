"""Amounts of memory as text."""

from __future__ import annotations

import pytest

from holdfast.core.names import format_bytes, size_bytes
from holdfast.errors import BadOption


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("400MB", 400 * 2**20),
        ("400M", 400 * 2**20),
        ("400 mib", 400 * 2**20),
        ("1.5G", 3 * 2**29),
        ("512k", 2**19),
        ("1048576", 2**20),
        ("100b", 100),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1M", "4 0MB", "400X", "1e9", "٤MB"])
def test_what_is_no_size_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadOption, match=r"--max-memory: .* is not an amount of memory; write \"400MB\"") as refused:
        size_bytes(text, "--max-memory")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (2_048, "2.0 kB"), (812 * 2**20, "812 MB"), (3 * 2**29, "1.5 GB")]
)
def test_sizes_are_written_short(size: int, text: str) -> None:
    assert format_bytes(size) == text
