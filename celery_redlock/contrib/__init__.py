"""Support for frameworks around Celery."""
