from django.db import models


class Order(models.Model):
    article = models.CharField(max_length=100)
    confirmed_at = models.DateTimeField(null=True)
    task_id = models.CharField(max_length=32)
