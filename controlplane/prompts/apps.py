from django.apps import AppConfig


class PromptsConfig(AppConfig):
    name = "controlplane.prompts"

    def ready(self) -> None:
        from controlplane.prompts import public_services

        public_services.register()
