"""The process around the queue: forks, deferred interrupts, file descriptors."""
