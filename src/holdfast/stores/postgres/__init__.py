"""The PostgreSQL store: one partition in one schema, one function a transition."""
