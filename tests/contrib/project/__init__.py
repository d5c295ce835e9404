"""A Django project whose tasks are checked; every case runs in a process of its own."""
