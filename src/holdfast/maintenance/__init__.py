"""Maintenance: promote, fire schedules, requeue, expire, prune. One leader per partition at a time, with an epoch."""
