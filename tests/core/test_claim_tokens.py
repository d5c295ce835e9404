from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import claim_token, epoch_of, fencing_token

numbers = st.integers(0, 2**53)
claim_ids = st.text(alphabet="0123456789abcdef.", min_size=1, max_size=32)


@given(numbers, numbers, claim_ids)
def test_a_token_gives_back_its_epoch_and_its_delivery(epoch: int, delivery: int, claim_id: str) -> None:
    token = claim_token(epoch, delivery, claim_id)
    assert (epoch_of(token), fencing_token(token)) == (epoch, delivery)


@given(numbers, numbers, numbers, numbers, claim_ids, claim_ids)
def test_two_claims_share_a_token_only_if_all_parts_are_equal(
    epoch: int, other_epoch: int, delivery: int, other_delivery: int, claim_id: str, other_claim_id: str
) -> None:
    same = claim_token(epoch, delivery, claim_id) == claim_token(other_epoch, other_delivery, other_claim_id)
    assert same == ((epoch, delivery, claim_id) == (other_epoch, other_delivery, other_claim_id))


@given(st.integers(1, 2**40), claim_ids, claim_ids)
def test_a_later_claim_has_the_larger_fencing_token(delivery: int, earlier: str, later: str) -> None:
    assert fencing_token(claim_token(9, delivery, earlier)) < fencing_token(claim_token(1, delivery + 1, later))
