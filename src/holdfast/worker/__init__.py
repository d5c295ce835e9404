"""Runs tasks: a supervisor that never runs user code, and child processes that do."""
