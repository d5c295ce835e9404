"""The end of a task in the transaction in which it has written."""
