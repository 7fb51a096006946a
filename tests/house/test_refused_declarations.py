"""Each declaration of sessions, types, retention and clearing that cannot work has a test of its refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

JOINING = "integrations/test_joining_a_sqlalchemy_session.py"
SQLALCHEMY = "integrations/test_sqlalchemy_sessions.py"
DJANGO = "integrations/test_django_sessions.py"
TYPES = "integrations/test_pydantic_and_attrs.py"
RETENTION = "app/test_declared_retention.py"

REFUSED = {
    "a database in mode transport": (SQLALCHEMY, "test_ctx_session_in_mode_transport_is_refused_when_it_is_declared"),
    "a database beside a document": (
        "transaction/test_documents.py",
        "test_the_database_is_refused_in_a_stage_with_a_document",
    ),
    "Django's ORM without a transaction": (
        DJANGO,
        "test_a_stage_without_a_database_transaction_may_not_use_the_orm",
    ),
    "session= of an app of mode transport": (JOINING, "test_an_app_of_mode_transport_refuses_a_session"),
    "session= inside a stage": (JOINING, "test_a_stage_has_its_own_transaction_and_refuses_a_session"),
    "session= of another database": (JOINING, "test_a_session_of_another_database_is_refused"),
    "session= of an async or unknown kind": (
        JOINING,
        "test_another_kind_of_session_is_refused_before_anything_is_written",
    ),
    "session= beside connection=": (JOINING, "test_both_a_connection_and_a_session_are_refused"),
    "a sessionmaker of several databases": (
        SQLALCHEMY,
        "test_a_sessionmaker_of_several_databases_is_refused_when_it_is_given",
    ),
    "SQLAlchemy that is not installed": (
        SQLALCHEMY,
        "test_stagepost_imports_no_sqlalchemy_and_ctx_session_says_what_to_install",
    ),
    "Django on another database": (DJANGO, "test_django_on_another_database_is_refused"),
    "an alias that Django does not have": (DJANGO, "test_an_alias_that_django_does_not_have_is_refused"),
    "a type that cannot travel": (TYPES, "test_a_type_that_cannot_travel_is_refused_when_it_is_declared"),
    "a state without defaults": (TYPES, "test_a_state_needs_defaults"),
    "a stage's retention below its redelivery horizon": (
        RETENTION,
        "test_a_retention_shorter_than_the_redelivery_horizon_is_refused_when_it_is_declared",
    ),
    "a type's retention below a stage's horizon": (
        RETENTION,
        "test_a_retention_of_a_type_that_is_too_short_for_a_stage_is_refused_at_the_start",
    ),
    "a broker's retention below seven days": (
        RETENTION,
        "test_a_retention_of_a_broker_s_ids_may_only_be_longer",
    ),
    "a retention that is no span of hours": (RETENTION, "test_a_retention_that_is_no_span_is_refused"),
    "a retention of an unknown kind": (RETENTION, "test_a_key_that_is_neither_a_type_nor_a_kind_is_refused"),
    "clearing= without stored bytes": (
        "transaction/test_clearing.py",
        "test_a_way_of_clearing_that_cannot_work_is_refused",
    ),
    "a request in a stage, or with a wrong timeout": (
        "edge/test_awaiting.py",
        "test_a_request_in_a_stage_and_a_wrong_timeout_are_refused",
    ),
}


@pytest.mark.parametrize("declared", REFUSED)
def test_a_declaration_that_cannot_work_has_a_test_of_its_refusal(declared: str) -> None:
    path, name = REFUSED[declared]
    assert f"def {name}(" in (TESTS / path).read_text()
