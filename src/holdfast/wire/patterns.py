"""What texts look like, as the document says it."""

from __future__ import annotations

from typing import Final

NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$"
TASK_ID: Final = r"^[0-9a-f]{32}$"
#: No control characters: not every store can keep them in what it looks for.
ID: Final = r"^[^\x00-\x1f\x7f]{1,200}$"
#: Keys and request_ids.
VISIBLE: Final = r"^[\x21-\x7e]{1,200}$"
CURSOR: Final = r"^[\x21-\x7e]*$"

#: Only for the document: core/durations.py says more clearly what is wrong.
_NUMBER: Final = r"[0-9]{1,6}(\.[0-9]{1,3})?"
DURATION: Final = rf"^({_NUMBER}|({_NUMBER}(ms|s|m)|[0-9]{{1,5}}h|[0-9]{{1,4}}d|[0-9]{{1,3}}w){{1,3}})$"
#: The same for times that are not zero, and for leases: those that are surely within the range.
TIME_LIMIT: Final = r"^([1-9][0-9]{0,5}(ms|s|m)?|[1-9][0-9]{0,4}h|[1-9][0-9]{0,3}d|[1-9][0-9]{0,2}w)$"
LEASE: Final = r"^([5-9][0-9]{2}ms|[1-9][0-9]{3,6}ms|[1-9][0-9]{0,3}s|[1-9][0-9]{0,2}m|([1-9]|1[0-9]|2[0-4])h)$"
TTL: Final = r"^([0-9]{1,6}ms|[0-9]{1,3}s?|[0-5]?[0-9]m|[01]h)$"
