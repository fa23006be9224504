from django.apps import AppConfig


class DeadLettersConfig(AppConfig):
    name = "controlplane.deadletters"
