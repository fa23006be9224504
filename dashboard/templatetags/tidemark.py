"""Filters and tags of the dashboard's templates: figures, times, icons."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django import template
from django.template.defaultfilters import floatformat
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard import numbers, words
from dashboard.scope import PageState
from dashboard.table_csv import CSV

register = template.Library()

register.filter("tokens", numbers.tokens)
register.filter("figure", numbers.count)
register.filter("percent", numbers.percent)
register.filter("ms", numbers.milliseconds)
register.filter("seconds", numbers.seconds)
register.filter("short_ms", numbers.span)
register.filter("signed_ms", numbers.difference)
register.filter("signed_percent", numbers.change)
register.filter("label", words.label)
register.filter("valued", words.valued)
register.filter("worded", words.worded)
register.filter("person", words.person)

_SPRITE = "vendor/tabler-icons-3.52.0/sprite.svg"


@register.simple_tag
def icon(name: str) -> SafeString:
    """A decorative icon of the sprite; the word beside it carries the meaning."""
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>', static(_SPRITE), name)


@register.simple_tag(takes_context=True)
def csv_link(context: template.Context, label: str) -> SafeString:
    """A link to the table of that label as CSV: the page itself, asked for it with the filters that it has."""
    request = context.get("request")
    if request is None:
        query = context["state"].query(page="", item="")
    else:
        given = request.GET.copy()
        for name in (CSV, "page"):
            given.pop(name, None)
        query = given.urlencode()
    address = f"{query}&{urlencode({CSV: label})}" if query else urlencode({CSV: label})
    return format_html(
        '<span class="tools csv"><a href="?{}" title="{} as CSV" download>{}'
        '<span class="visually-hidden">{} as CSV</span></a></span>',
        address,
        label,
        icon("download"),
        label,
    )


@register.simple_tag
def moment(at: datetime | None, zone: ZoneInfo, style: str = "full") -> SafeString | str:
    """A time in the page's zone, UTC on hover. `style`: `full`, or `time` for the time of day alone."""
    if at is None:
        return numbers.UNKNOWN
    local = at.astimezone(zone)
    text = local.strftime("%H:%M:%S" if style == "time" else "%Y-%m-%d %H:%M:%S %Z")
    utc = at.astimezone(ZoneInfo("UTC"))
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        utc.strftime("%Y-%m-%d %H:%M:%S"),
        text,
    )


@register.filter
def item(mapping: dict[str, object], key: str) -> object:
    """`mapping[key]`, or None."""
    return mapping.get(key)


@register.filter
def plain(value: object) -> object:
    """A fact in words: lists with commas, yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(part) for part in value) if isinstance(value, list) else value


@register.simple_tag
def with_state(state: PageState, name: str, value: str) -> str:
    """The page's query with one part of its state changed."""
    return state.query(**{name: value})


@register.simple_tag
def change_query(state: PageState, at: datetime) -> str:
    """The page's query, to compare before and after this moment."""
    return state.query(only="change", at=at.isoformat(), a="", b="")


@register.simple_tag
def minus(left: float | None, right: float | None) -> float | None:
    """left − right where both are known."""
    return None if left is None or right is None else left - right


@register.filter
def per_minute(per_s: float | None) -> float | None:
    return None if per_s is None else per_s * 60


@register.filter
def cell(value: object) -> object:
    """A cell of a chart's table: numbers with at most one decimal, text as it is."""
    return floatformat(value, "-1") if isinstance(value, int | float) else value
