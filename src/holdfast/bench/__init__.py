"""`holdfast bench`: what this machine can do, measured with real worker processes. It reports, it never judges."""
