"""A Holdfast app whose types have the names of the producer's tasks."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID

from holdfast import Holdfast

app = Holdfast()


@app.task(name="shop.mail")
def mail(number: int) -> int:
    return number


@app.task(name="shop.price")
def price(order: UUID, amount: Decimal, at: datetime) -> str:
    return f"{order} {amount} {at.isoformat()}"
