"""What must happen although nobody asked: promote, tick, requeue, expire, prune. One owner at a time, with an epoch."""
