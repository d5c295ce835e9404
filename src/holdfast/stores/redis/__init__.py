"""The Redis and Valkey store: one partition under one hash tag, one script a transition."""
