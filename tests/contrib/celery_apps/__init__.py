"""Applications written for Celery, and a real Celery that sends messages."""
