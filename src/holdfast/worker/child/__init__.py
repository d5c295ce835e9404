"""A child process: imports the app and runs its tasks."""
