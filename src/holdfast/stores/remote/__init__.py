"""The store behind a gateway: the contract over HTTP."""
