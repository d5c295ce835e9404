"""The store behind a server: the contract over HTTP."""
