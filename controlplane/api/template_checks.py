"""What a template version costs and does over REST: lints, comparison, rendering, regression check."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import StrictSerializer, Text
from controlplane.api.templates import POOL, TemplateView, VersionChange
from controlplane.errors import Conflict, FieldError, Invalid
from controlplane.prompts.divergence import compare_versions
from controlplane.prompts.goldens import accept_goldens, check_versions
from controlplane.prompts.lints import report_on
from controlplane.prompts.models import PromptGolden, PromptTemplateVersion
from controlplane.prompts.rendering import render
from controlplane.prompts.selectors import counter_of_pool, find_template, find_version
from controlplane.tenants.roles import Capability

# Reading a text's lints or rendering it changes nothing: who may see the template may do it.
READS = Needs(read=Capability.TEMPLATES_VIEW, change=Capability.TEMPLATES_VIEW)


class LintSerializer(serializers.Serializer[object]):
    code = serializers.CharField()
    severity = serializers.ChoiceField(choices=["error", "warning", "info"])
    segment = serializers.IntegerField(allow_null=True, help_text="Index; null = the template as a whole.")
    position = serializers.IntegerField(allow_null=True, help_text="Character in the segment's text.")
    message = serializers.CharField()
    fix = serializers.CharField()


class SegmentTokensSerializer(serializers.Serializer[object]):
    name = serializers.CharField()
    kind = serializers.CharField()
    tokens = serializers.IntegerField()


class ReportSerializer(serializers.Serializer[object]):
    lints = LintSerializer(many=True)
    segments = SegmentTokensSerializer(many=True)
    stable_tokens = serializers.IntegerField(help_text="Tokens that all its requests begin with.")
    stable_blocks = serializers.IntegerField()
    block_size = serializers.IntegerField()
    tokenizer = serializers.CharField()
    exact = serializers.BooleanField(help_text="false: estimated, four bytes a token.")


class DivergenceSerializer(serializers.Serializer[object]):
    common_tokens = serializers.IntegerField()
    first_divergent_block = serializers.IntegerField(allow_null=True)
    segment = serializers.CharField(help_text="Of the later version, where they part.")
    position = serializers.IntegerField(allow_null=True)
    old_tokens = serializers.IntegerField()
    new_tokens = serializers.IntegerField()
    cached_tokens_kept = serializers.IntegerField(help_text="That the later version finds cached of the earlier.")
    cached_tokens_lost = serializers.IntegerField(help_text="Of each cached copy, by rolling the later version out.")
    block_size = serializers.IntegerField()
    exact = serializers.BooleanField()


class RenderRequest(StrictSerializer):
    values = serializers.DictField(
        child=serializers.JSONField(), required=False, default=dict, help_text="Placeholder → text or JSON."
    )
    pool = Text(max_length=48, required=False, allow_blank=True, default="")


class PartSerializer(serializers.Serializer[object]):
    name = serializers.CharField()
    kind = serializers.CharField()
    start = serializers.IntegerField(help_text="Character of the prompt where it begins.")
    tokens = serializers.IntegerField()


class RenderedSerializer(serializers.Serializer[object]):
    text = serializers.CharField()
    parts = PartSerializer(many=True)
    tokens = serializers.IntegerField()
    tokenizer = serializers.CharField()
    exact = serializers.BooleanField()


class GoldenSerializer(serializers.Serializer[PromptGolden]):
    pool = serializers.CharField()
    tokens = serializers.IntegerField()
    digest = serializers.CharField(help_text="SHA-256 of the token ids as accepted.")
    accepted_at = serializers.DateTimeField()
    checked_at = serializers.DateTimeField()
    fault = serializers.CharField(help_text="What the check found; empty = as accepted.")


class RegressionSerializer(serializers.Serializer[object]):
    pools = GoldenSerializer(many=True)


class Acceptance(StrictSerializer):
    reason = Text(max_length=500)


class VersionLints(TemplateView):
    needs = READS
    serializer_class = ReportSerializer

    @extend_schema(operation_id="template_versions_lints", parameters=[POOL], responses=ReportSerializer)
    def get(self, request: Request, template: str, version: int) -> Response:
        """What keeps the version's prefix from being reused, its tokens, and its stable prefix."""
        counter = counter_of_pool(_parameter(request, "pool", {"pool"}))
        return Response(ReportSerializer(report_on(find_version(template, version).segments, counter)).data)


class DraftLints(TemplateView):
    needs = READS
    serializer_class = ReportSerializer

    @extend_schema(operation_id="templates_lint", parameters=[POOL], request=VersionChange, responses=ReportSerializer)
    def post(self, request: Request, template: str) -> Response:
        """The same of segments that are not stored; their order may be wrong."""
        counter = counter_of_pool(_parameter(request, "pool", {"pool"}))
        find_template(template)
        segments = [dict(segment) for segment in self.body(VersionChange)["segments"]]
        return Response(ReportSerializer(report_on(segments, counter)).data)  # type: ignore[arg-type]


class TemplateDiff(TemplateView):
    needs = READS
    serializer_class = DivergenceSerializer

    @extend_schema(
        operation_id="templates_diff",
        parameters=[OpenApiParameter("from", int, required=True), OpenApiParameter("to", int, required=True), POOL],
        responses=DivergenceSerializer,
    )
    def get(self, request: Request, template: str) -> Response:
        """Where two versions part, and the cached tokens that rolling the later one out loses."""
        pool = _parameter(request, "pool", {"pool", "from", "to"})
        old, new = (find_version(template, _version(request, name)) for name in ("from", "to"))
        found = compare_versions(old.segments, new.segments, counter_of_pool(pool))
        return Response(DivergenceSerializer(found).data)


class VersionRender(TemplateView):
    needs = READS
    serializer_class = RenderedSerializer

    @extend_schema(operation_id="template_versions_render", request=RenderRequest, responses=RenderedSerializer)
    def post(self, request: Request, template: str, version: int) -> Response:
        """The prompt: static, semi-static, dynamic, with stable serialisation of JSON values. Nothing is kept."""
        body = self.body(RenderRequest)
        row, counter = find_version(template, version), counter_of_pool(body["pool"])
        _refuse_unrenderable(body["values"])
        rendered = render(row.segments, body["values"])
        parts = [
            {"name": part.name, "kind": part.kind, "start": part.start, "tokens": counter.count(part.text)}
            for part in rendered.parts
        ]
        answer = {
            "text": rendered.text,
            "parts": parts,
            "tokens": counter.count(rendered.text),
            "tokenizer": counter.name,
            "exact": counter.exact,
        }
        return Response(RenderedSerializer(answer).data)


class VersionRegression(TemplateView):
    serializer_class = RegressionSerializer

    @extend_schema(operation_id="template_versions_regression_show")
    def get(self, request: Request, template: str, version: int) -> Response:
        """The last check of each pool whose tokenizer is at hand."""
        row = find_version(template, version)
        return Response(RegressionSerializer({"pools": row.goldens.all()}).data)

    @extend_schema(operation_id="template_versions_regression_check", request=None)
    def post(self, request: Request, template: str, version: int) -> Response:
        """Compute the tokens of the static part again and compare them with those accepted."""
        row = _published(template, version)
        return Response(RegressionSerializer({"pools": check_versions([row])}).data)

    @extend_schema(operation_id="template_versions_regression_accept", request=Acceptance)
    def put(self, request: Request, template: str, version: int) -> Response:
        """Take the present tokens as the right ones."""
        row = _published(template, version)
        goldens = accept_goldens(row, actor=self.actor, request_id=self.request_id, **self.body(Acceptance))
        return Response(RegressionSerializer({"pools": goldens}).data)


def _published(template: str, version: int) -> PromptTemplateVersion:
    row = find_version(template, version)
    if row.status != PromptTemplateVersion.VersionStatus.PUBLISHED:
        raise Conflict(f"Version {version} is {row.status}; only a published one is checked.")
    return row


def _parameter(request: Request, name: str, known: set[str]) -> str:
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        raise Invalid.field(unknown[0], f"There is no parameter {unknown[0]!r}; there are: {', '.join(sorted(known))}.")
    return str(request.query_params.get(name, ""))


def _version(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise Invalid.field(name, f"{name} is the number of a version.")
    return int(text)


def _refuse_unrenderable(values: dict[str, object]) -> None:
    """Lone surrogates have no bytes: no tokenizer takes them."""
    try:
        repr(values).encode()
        for value in values.values():
            str(value).encode()
    except UnicodeEncodeError:
        error = FieldError(field="values", message="Broken Unicode is not allowed.")
        raise Invalid(error["message"], errors=[error]) from None
