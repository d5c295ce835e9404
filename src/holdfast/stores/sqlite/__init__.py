"""The embedded store: one SQLite file, or memory."""
