from django.apps import AppConfig


class IsolationConfig(AppConfig):
    name = "controlplane.isolation"
