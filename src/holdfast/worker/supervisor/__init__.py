"""The supervisor process: starts the child processes and keeps their claims; it never imports user code."""
