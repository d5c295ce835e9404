"""A Flask service that was written for Celery: a base class with an app context, and `self.retry`.

What differs from the original: `celery` is `holdfast.contrib.celery` in two imports, and `holdfast_url` is set.
"""
