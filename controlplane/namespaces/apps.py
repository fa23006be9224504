from django.apps import AppConfig


class NamespacesConfig(AppConfig):
    name = "controlplane.namespaces"

    def ready(self) -> None:
        from controlplane.namespaces import sharing_services

        sharing_services.register()
