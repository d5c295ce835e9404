"""The promises of the store contract, one case each: `CASES`, and `run_case` to check one of them on a store."""

from holdfast.testing.kit.conformance.cases import CASES
from holdfast.testing.kit.conformance.registry import Case, run_case

__all__ = ["CASES", "Case", "run_case"]
