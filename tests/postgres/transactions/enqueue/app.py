"""The app as a worker finds it."""

from __future__ import annotations

import os

from tests.postgres.transactions.enqueue.shop import make_app

app = make_app(os.environ["HOLDFAST_URL"])
