from django.apps import AppConfig


class OrdersConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    name = "tests.contrib.celery_apps.shop.orders"
    label = "orders"

    def ready(self) -> None:
        from tests.contrib.celery_apps.shop.orders import task_table  # noqa: F401
