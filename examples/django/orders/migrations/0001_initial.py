from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("article", models.CharField(max_length=100)),
                ("confirmed_at", models.DateTimeField(null=True)),
                ("task_id", models.CharField(max_length=32)),
            ],
        ),
    ]
