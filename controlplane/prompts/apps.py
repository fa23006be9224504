from django.apps import AppConfig


class PromptsConfig(AppConfig):
    name = "controlplane.prompts"
