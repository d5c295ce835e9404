"""The command line: it parses, prints and exits; what it does is done elsewhere."""
