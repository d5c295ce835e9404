"""What is said when a package is missing that an integration needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(module: str, packages: str) -> Iterator[None]:
    """Imports in this block that fail for lack of a package name the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "holdfast").partition(".")[0]
        if package == "holdfast":
            raise
        text = f"{module} needs the package {package}; run: pip install {packages}"
        raise ModuleNotFoundError(text, name=error.name) from None
