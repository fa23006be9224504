from django.apps import AppConfig


class WorkspaceConfig(AppConfig):
    name = "controlplane.workspace"
