"""The OpenAPI document is a golden file: a change of the API shows in review."""

from __future__ import annotations

from pathlib import Path

import yaml

GOLDEN = Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml"
REMEDY = "run: manage.py spectacular --custom-settings controlplane.api.schema.SETTINGS --file docs/openapi.yaml"


def test_the_golden_schema_is_the_served_one(bob) -> None:
    served = yaml.safe_load(bob.get("/api/v1/schema", headers={"accept": "application/yaml"}).content)
    assert served == yaml.safe_load(GOLDEN.read_text()), REMEDY
    assert served["openapi"].startswith("3.1")


def test_every_operation_names_the_problem_document(bob) -> None:
    schema = yaml.safe_load(GOLDEN.read_text())
    operations = [item for path in schema["paths"].values() for method, item in path.items() if method != "parameters"]
    named = [operation for operation in operations if "default" in operation["responses"]]
    assert operations == named


def test_the_docs_page_runs_under_the_content_security_policy(bob) -> None:
    page = bob.get("/api/v1/docs")
    assert page.status_code == 200
    html = page.content.decode()
    assert "<style" not in html and "<script>" not in html and "swagger-ui-bundle.js" in html
    script = bob.get("/api/v1/docs?script=")
    assert script["content-type"].startswith("application/javascript") and b"/api/v1/schema" in script.content
