"""Faults under load, and the proof that nothing was lost: what the fault tests and the long run share."""
