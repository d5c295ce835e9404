"""The app with the tasks."""
