"""Values and rules. Nothing here does I/O, asks the time or draws random numbers."""
