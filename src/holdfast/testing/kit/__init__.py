"""The conformance kit: what a store is handed to, to prove that it keeps the promises of the contract.

`conformance` is the list of promises, one case each; `model` is the Hypothesis state machine; `broken` are stores
with one planted bug each, which prove that the kit can fail; `faulty` is a store that loses calls and replies.
"""
