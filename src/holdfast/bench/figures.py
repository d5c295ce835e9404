"""What a bench run found: figures, their targets, and the report that holds them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Target(msgspec.Struct, frozen=True):
    """The value that a figure should reach, from above or from below."""

    value: float
    at_least: bool

    def met_by(self, value: float) -> bool:
        """Whether this value is good enough."""
        return value >= self.value if self.at_least else value <= self.value


class Figure(msgspec.Struct, frozen=True):
    """One measured number."""

    name: str
    title: str
    value: float
    unit: str
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        return None if self.target is None else self.target.met_by(self.value)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: where, with what, how large, and what came out."""

    machine: dict[str, str | int]
    versions: dict[str, str]
    settings: dict[str, str | int | bool]
    figures: list[Figure]

    def figure(self, name: str) -> Figure:
        """The figure of this name."""
        return next(figure for figure in self.figures if figure.name == name)

    def as_json(self) -> bytes:
        """The report for machines: each figure with its target and whether it is met."""
        plain = msgspec.to_builtins(self)
        for row, figure in zip(plain["figures"], self.figures, strict=True):
            row["met"] = figure.met
        return msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n"


def at_least(value: float) -> Target:
    """The more, the better."""
    return Target(value, at_least=True)


def at_most(value: float) -> Target:
    """The less, the better."""
    return Target(value, at_least=False)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
