"""The demo: a lively mix of tasks, a real worker, and a table that shows what becomes of them."""
