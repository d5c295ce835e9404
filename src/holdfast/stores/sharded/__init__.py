"""One store over many partitions, each of them a store of its own."""
