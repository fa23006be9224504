from django.apps import AppConfig


class PlacementsConfig(AppConfig):
    name = "controlplane.placements"
