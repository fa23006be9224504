from django.apps import AppConfig


class WhatIfConfig(AppConfig):
    name = "controlplane.what_if"
