"""What a process of Holdfast must never have to say, whatever happens around it."""

from __future__ import annotations


def complaints_in(output: str) -> list[str]:
    """The lines that tell of a bug."""
    return [line for line in output.splitlines() if "bug in Holdfast" in line or "Traceback" in line]
