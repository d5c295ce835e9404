"""Schedules: the record, its timing, its occurrences, and what to do next."""
