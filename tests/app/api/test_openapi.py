"""The OpenAPI document as generators of clients read it: names that stay, and no schema that they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

OPERATIONS = {
    "acknowledge_alarms",
    "add_class",
    "add_own_encoder",
    "cancel_evaluation",
    "cancel_job",
    "change_classes",
    "change_webhook",
    "choose_thresholds",
    "correct_job_labels",
    "correct_job_suspects",
    "count_jobs",
    "create_evaluation",
    "create_key",
    "create_webhook",
    "delete_alias",
    "delete_dataset",
    "delete_evaluation",
    "delete_gate",
    "delete_job",
    "delete_monitor",
    "delete_own_encoder",
    "delete_schedule",
    "delete_shadow",
    "delete_version",
    "delete_webhook",
    "derive_version",
    "erase_subject",
    "export_bundle",
    "fetch_dataset",
    "get_alias",
    "get_answers",
    "get_dataset",
    "get_encoder",
    "get_evaluation",
    "get_gate",
    "get_inputs",
    "get_job",
    "get_map",
    "get_metrics",
    "get_model",
    "get_monitor",
    "get_onnx",
    "get_own_encoder",
    "get_package",
    "get_packages",
    "get_performance",
    "get_program_version",
    "get_record_schema",
    "get_review",
    "get_schedule",
    "get_shadow",
    "get_student_curve",
    "get_student_trace",
    "get_version",
    "get_webhook",
    "give_feedback",
    "import_teacher",
    "list_alias_moves",
    "list_audit",
    "list_classes",
    "list_dataset_classes",
    "list_dataset_rows",
    "list_datasets",
    "list_deliveries",
    "list_evaluations",
    "list_job_events",
    "list_job_labels",
    "list_job_students",
    "list_job_suspects",
    "list_jobs",
    "list_keys",
    "list_models",
    "list_own_encoders",
    "list_samples",
    "list_servers",
    "list_thresholds",
    "list_token_revocations",
    "list_usage",
    "list_webhooks",
    "list_workers",
    "livez",
    "make_review_dataset",
    "merge_classes",
    "plan_upload",
    "point_alias",
    "post_bundle",
    "predict",
    "put_monitor",
    "put_schedule",
    "put_shadow",
    "query",
    "query_classes",
    "readyz",
    "readyz_queries",
    "repeat_delivery",
    "retrain",
    "retry_job",
    "revise_dataset",
    "revoke_key",
    "revoke_tokens",
    "rotate_key",
    "set_gate",
    "set_quotas",
    "submit_job",
    "test_webhook",
    "upload_dataset",
    "v2_index",
    "v2_infer",
    "v2_infer_version",
    "v2_live",
    "v2_load",
    "v2_model",
    "v2_model_config",
    "v2_model_config_version",
    "v2_model_ready",
    "v2_model_ready_version",
    "v2_model_stats",
    "v2_model_stats_version",
    "v2_model_version",
    "v2_ready",
    "v2_server",
    "v2_stats",
    "v2_unload",
    "whoami",
}
"""The functions of generated clients. A name that changes breaks the programs that call it."""


@pytest.fixture
def document(client: Any) -> Any:
    return client.get("/openapi.json").json()


def schemas(part: Any) -> Iterator[dict[str, Any]]:
    """Every object of the document outside of extensions."""
    if isinstance(part, dict):
        yield part
    for name, value in part.items() if isinstance(part, dict) else enumerate(part):
        if isinstance(value, dict | list) and not str(name).startswith("x-"):
            yield from schemas(value)


def test_generated_clients_call_their_functions_by_verb_and_resource(document: Any):
    assert {
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    } == OPERATIONS


def test_no_schema_is_one_that_generators_refuse(document: Any):
    for part in schemas(document):
        properties = part.get("properties", {})
        assert False not in properties.values()
        assert {"type": "null"} not in properties.values()
        assert not ({"anyOf", "oneOf", "allOf"} & part.keys() and properties)
        assert part.get("type") != "array" or {"items", "prefixItems"} & part.keys()


def test_the_rules_that_generators_cannot_read_are_in_extensions(document: Any):
    known = document["components"]["schemas"]
    assert known["EvaluationParameters"]["x-rules"]["anyOf"]
    one_row, many_rows, *of_records = known["QueryRequest"]["oneOf"]
    assert (one_row["x-null"], many_rows["x-null"]) == (["rows"], ["x"])
    forms = ["record", "records", "columns", "text", "texts"]
    forms += ["image", "images", "embedding", "embeddings"]
    assert [form["required"] for form in of_records] == [[name] for name in forms]
    assert all(
        form["properties"].keys() == {name, "explain", "faulty_rows"}
        for form, name in zip(of_records, forms, strict=True)
    )
    assert known["InferenceRows"]["x-rules"]["oneOf"][0]["properties"]["parameters"]["anyOf"][0][
        "properties"
    ] == {
        "binary_data_size": False,
        "shared_memory_region": False,
        "classification": False,
    }
    upload = document["paths"]["/v1/datasets"]["post"]["requestBody"]
    assert list(upload["content"]) == ["application/octet-stream"]
    assert {"text/csv", "multipart/form-data"} <= upload["x-content"].keys()
