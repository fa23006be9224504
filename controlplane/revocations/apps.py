from django.apps import AppConfig


class RevocationsConfig(AppConfig):
    name = "controlplane.revocations"
