"""Recording tasks, and following them."""
