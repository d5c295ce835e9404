"""What is in examples/ and deploy/ does what it says."""
