"""Addresses of sign-in: those of allauth's that an installation without outgoing mail has a use for."""

from __future__ import annotations

from allauth.account import views
from django.conf import settings
from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", views.login, name="account_login"),
    path("logout/", views.logout, name="account_logout"),
    path("signup/", views.signup, name="account_signup"),
    path("inactive/", views.account_inactive, name="account_inactive"),
    path("reauthenticate/", views.reauthenticate, name="account_reauthenticate"),
    path("password/change/", views.password_change, name="account_change_password"),
    path("password/set/", views.password_set, name="account_set_password"),
    path("2fa/", include("allauth.mfa.urls")),
]
if settings.CONFIG.oidc_issuer:
    urlpatterns += [
        path("3rdparty/", include("allauth.socialaccount.urls")),
        path("", include("allauth.socialaccount.providers.openid_connect.urls")),
    ]
