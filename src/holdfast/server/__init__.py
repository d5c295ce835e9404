"""The HTTP edge: routes over a store, with no rules of their own."""
