"""Claim tokens: `epoch.delivery.claim_id`.

The epoch is that of the partition's owner, the delivery counts the claims of the task (so it also orders
them), and the claim_id is the randomness that the reserving worker brought. A store compares whole tokens
only; the parts are for people and for the fencing token of a task.
"""

from __future__ import annotations


def claim_token(epoch: int, delivery: int, claim_id: str) -> str:
    """The token of one claim."""
    return f"{epoch}.{delivery}.{claim_id}"


def fencing_token(token: str) -> int:
    """A number that grows with every claim of the task: hand it to systems that refuse older ones."""
    return int(token.split(".", 2)[1])


def epoch_of(token: str) -> int:
    """The epoch under which the claim was given."""
    return int(token.split(".", 1)[0])
