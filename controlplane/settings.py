"""Django settings. Everything an installation may change comes from `config.py`; the rest is decided here."""

from __future__ import annotations

import sys
from urllib.parse import unquote, urlsplit

from django.utils.csp import CSP

from controlplane.config import (
    BASE_DIR,
    embedded_valkey_url,
    fleet_key_of,
    load_config,
    mailer_of,
    secret_in_run_dir,
)

CONFIG = load_config()
CONFIG.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

DEBUG = CONFIG.debug
SECRET_KEY = secret_in_run_dir(CONFIG.run_dir, "secret-key", CONFIG.secret_key)
FLEET_KEY = fleet_key_of(CONFIG)
ALLOWED_HOSTS = CONFIG.allowed_hosts
CSRF_TRUSTED_ORIGINS = CONFIG.csrf_trusted_origins

INSTALLED_APPS = [
    "whitenoise.runserver_nostatic",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "controlplane.audit",
    "controlplane.approvals",
    "controlplane.revocations",
    "controlplane.tenants",
    "controlplane.idempotency",
    "controlplane.namespaces",
    "controlplane.prompts",
    "controlplane.fleet",
    "controlplane.policies",
    "controlplane.placements",
    "controlplane.snapshots",
    "controlplane.telemetry",
    "controlplane.rollouts",
    "controlplane.deadletters",
    "controlplane.isolation",
    "controlplane.declarative",
    "controlplane.alerts",
    "controlplane.webhooks",
    "controlplane.workspace",
    "controlplane.reports",
    "controlplane.what_if",
    "controlplane.api",
    "controlplane.demo",
    "controlplane.supervisor",
    "dashboard",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "dashboard.secrets.AddressesWithoutSecrets",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.csp",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def _database(url: str) -> dict[str, object]:
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": CONFIG.run_dir / "tidemark.sqlite3",
            "OPTIONS": {
                # IMMEDIATE takes the write lock at BEGIN, so a transaction waits instead of failing half-way.
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ValueError("TIDEMARK_DATABASE_URL must begin with postgresql://")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "CONN_HEALTH_CHECKS": True,
    }


DATABASES = {"default": _database(CONFIG.database_url)}


def _redis_url() -> str:
    """The configured URL, else the one noted by the supervisor of the embedded Valkey, else where it would be."""
    if CONFIG.redis_url:
        return CONFIG.redis_url
    try:
        return (CONFIG.run_dir / "valkey-url").read_text().strip()
    except FileNotFoundError:
        return embedded_valkey_url(CONFIG)


REDIS_URL = _redis_url()

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "tidemark:channels"},
    }
}

CACHES = {
    "default": {"BACKEND": "controlplane.caching.SharedCache", "LOCATION": REDIS_URL, "KEY_PREFIX": "tidemark:cache"}
}

AUTH_USER_MODEL = "tenants.User"
AUTHENTICATION_BACKENDS = ["controlplane.tenants.backends.OperatorBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*", "password2*"]
ACCOUNT_ADAPTER = "controlplane.tenants.adapters.ClosedSignUp"
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_REAUTHENTICATION_TIMEOUT = 300
ALLAUTH_TRUSTED_PROXY_COUNT = CONFIG.trusted_proxies
MFA_ADAPTER = "controlplane.tenants.adapters.SealedSecrets"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Tidemark"
SOCIALACCOUNT_ADAPTER = "controlplane.tenants.adapters.IssuersAccounts"
SOCIALACCOUNT_LOGIN_ON_GET = False
# An address of the issuer's opens no local account: who has both connects them when signed in.
SOCIALACCOUNT_EMAIL_AUTHENTICATION = False
OIDC_PROVIDER_ID = "oidc"
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": OIDC_PROVIDER_ID,
                "name": CONFIG.oidc_name,
                "client_id": CONFIG.oidc_client_id,
                "secret": CONFIG.oidc_client_secret,
                "settings": {"server_url": CONFIG.oidc_issuer},
            }
        ]
        if CONFIG.oidc_issuer
        else [],
    }
}
MAILERS = {"default": mailer_of(CONFIG.email_url)}
DEFAULT_FROM_EMAIL = CONFIG.email_from

LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"

USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False

STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = CONFIG.run_dir / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "controlplane.static_files.GzippedManifestStorage"},
}
# Without a collected manifest (tests, a developer's shell) files are served straight from their folders.
WHITENOISE_USE_FINDERS = not (STATIC_ROOT / "staticfiles.json").exists() and "collectstatic" not in sys.argv
if WHITENOISE_USE_FINDERS:
    STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


SECURE_CSP = {
    "default-src": [CSP.SELF],
    "script-src": [CSP.SELF, CSP.NONCE],
    "style-src": [CSP.SELF, CSP.NONCE],
    "img-src": [CSP.SELF, "data:", "blob:"],
    "connect-src": [CSP.SELF],
    "object-src": [CSP.NONE],
    "base-uri": [CSP.NONE],
    # Browsers hold the redirect that follows a form against this list too: sign-in leads to the issuer.
    "form-action": [CSP.SELF, *([_origin(CONFIG.oidc_issuer)] if CONFIG.oidc_issuer else [])],
    "frame-ancestors": [CSP.NONE],
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = CONFIG.secure_cookies
SESSION_COOKIE_HTTPONLY = True
SECURE_SSL_REDIRECT = CONFIG.secure_cookies
SECURE_HSTS_SECONDS = 31_536_000 if CONFIG.secure_cookies else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = CONFIG.secure_cookies
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if CONFIG.secure_cookies else None

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Tidemark control API",
    "DESCRIPTION": "Tenants, cache namespaces, keys, pools, workers, watermark policies and published snapshots.",
    "VERSION": "1.0.0",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    # Enumerations stay where they are used; hoisted ones would need a name for each status of each noun.
    "POSTPROCESSING_HOOKS": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

TIDEMARK_ON_ROUTING_CHANGE = "controlplane.snapshots.services.publish_after_commit"
"""Called after the commit of a change that routers must learn of; `audit` may not import what is above it."""

CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": "tidemark:celery:", "visibility_timeout": 300}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_TIME_LIMIT = 60
CELERY_TASK_SOFT_TIME_LIMIT = 45
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
CELERY_ENABLE_UTC = True
# `expires` below two periods: after an outage the newest tick runs, not a queue of old ones.
CELERY_BEAT_SCHEDULE = {
    "poll-workers": {
        "task": "controlplane.fleet.tasks.poll_all",
        "schedule": CONFIG.poll_interval_s,
        "options": {"expires": CONFIG.poll_interval_s * 1.5},
    },
    "ingest-telemetry": {
        "task": "controlplane.telemetry.tasks.ingest",
        # Routers and subscribers ship at whole seconds, the beat ticks at any time: twice a second halves the wait.
        "schedule": 0.5,
        "options": {"expires": 0.75},
    },
    "check-hits": {
        "task": "controlplane.telemetry.tasks.check_hits",
        "schedule": 60.0,
        "options": {"expires": 90},
    },
    "watch-exact-pools": {
        "task": "controlplane.telemetry.tasks.watch_exact_pools",
        "schedule": 5.0,
        "options": {"expires": 8},
    },
    "expire-rollups": {
        "task": "controlplane.telemetry.tasks.expire_rollups",
        "schedule": 300.0,
        "options": {"expires": 500},
    },
    "publish-pending": {
        "task": "controlplane.snapshots.tasks.publish_pending",
        "schedule": 5.0,
        "options": {"expires": 8},
    },
    "expire-policy-overrides": {
        "task": "controlplane.policies.tasks.expire_overrides",
        "schedule": 5.0,
        "options": {"expires": 8},
    },
    "expire-placements": {
        "task": "controlplane.placements.tasks.expire_placements",
        "schedule": 5.0,
        "options": {"expires": 8},
    },
    "drive-rollouts": {
        "task": "controlplane.rollouts.tasks.drive",
        "schedule": 5.0,
        "options": {"expires": 8},
    },
    "note-breakers": {
        "task": "controlplane.telemetry.tasks.note_breakers",
        "schedule": 60.0,
        "options": {"expires": 90},
    },
    "check-templates": {
        "task": "controlplane.prompts.tasks.check_templates",
        "schedule": 300.0,
        "options": {"expires": 550},
    },
    "expire-change-requests": {
        "task": "controlplane.approvals.tasks.expire_change_requests",
        "schedule": 300.0,
        "options": {"expires": 500},
    },
}
# Below: a worker is due an hour after its last canaries, and at once when it has joined or restarted.
CELERY_BEAT_SCHEDULE |= {
    "canaries": {"task": "controlplane.isolation.tasks.canaries_due", "schedule": 60.0, "options": {"expires": 90}},
    "forget-canaries": {
        "task": "controlplane.isolation.tasks.forget_canaries",
        "schedule": 3600.0,
        "options": {"expires": 7000},
    },
}
CELERY_BEAT_SCHEDULE |= {
    "evaluate-alert-rules": {
        "task": "controlplane.alerts.tasks.evaluate_rules",
        "schedule": 15.0,
        "options": {"expires": 20},
    },
    "forget-alerts": {
        "task": "controlplane.alerts.tasks.forget_alerts",
        "schedule": 3600.0,
        "options": {"expires": 7000},
    },
}
CELERY_BEAT_SCHEDULE["forget-idempotent-calls"] = {
    "task": "controlplane.idempotency.tasks.forget_old_calls",
    "schedule": 3600.0,
    "options": {"expires": 7000},
}
CELERY_BEAT_SCHEDULE |= {
    "webhooks": {"task": "controlplane.webhooks.tasks.deliver_due", "schedule": 5.0, "options": {"expires": 8}},
    "forget-deliveries": {
        "task": "controlplane.webhooks.tasks.forget_deliveries",
        "schedule": 3600.0,
        "options": {"expires": 7000},
    },
    "forget-task-deliveries": {
        "task": "controlplane.deadletters.tasks.forget_deliveries",
        "schedule": 3600.0,
        "options": {"expires": 7000},
    },
    "check-audit": {
        "task": "controlplane.webhooks.tasks.check_audit",
        "schedule": 3600.0,
        "options": {"expires": 7000},
    },
}
CELERY_BEAT_SCHEDULE |= {
    "reports": {"task": "controlplane.reports.tasks.tick", "schedule": 5.0, "options": {"expires": 8}},
    "forget-reports": {
        "task": "controlplane.reports.tasks.forget_reports",
        "schedule": 3600.0,
        "options": {"expires": 7000},
    },
}
CELERY_BEAT_SCHEDULE |= {
    "what-ifs": {"task": "controlplane.what_if.tasks.tick", "schedule": 5.0, "options": {"expires": 8}},
    "forget-what-ifs": {
        "task": "controlplane.what_if.tasks.forget_what_ifs",
        "schedule": 3600.0,
        "options": {"expires": 7000},
    },
}
CELERY_BEAT_SCHEDULE_FILENAME = str(CONFIG.run_dir / "celerybeat-schedule")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["stderr"], "level": CONFIG.log_level},
    "loggers": {
        "httpx": {"level": "WARNING"},
        "httpcore": {"level": "WARNING"},
        "weasyprint": {"level": "ERROR"},
        "fontTools": {"level": "WARNING"},
    },
}
