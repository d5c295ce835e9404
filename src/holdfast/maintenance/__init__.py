"""What must happen although nobody asked: promote, requeue, prune. One owner at a time, with an epoch."""
