"""Break each promise of ARCHITECTURE.md and see a test fail: ``python -m tests.house.mutants [WORDS OF A PROMISE]``.

A mutant is one edit that breaks one promise, as a careless colleague would. The runner copies ``src/``, applies one
mutant to the copy and runs the mutant's tests on it. ``PYTHONPATH`` puts the copy before the editable install, also in
the processes that the tests start, unless a test sets ``PYTHONPATH`` itself. A mutant that no test catches survives;
the exit code is then 1.

The tests must pass without a mutant first. Only a test that fails catches a mutant: an error in a fixture, an error at
collection or a skipped test does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.house.counting import SOURCE
from tests.house.ids import ROOT

TEST_SECONDS_MAX = 120
RUN_SECONDS_MAX = 600
# A reason may be long.
LINE_MAX = 300
# The attributes of a JUnit report.
COUNTS = ("tests", "failures", "errors", "skipped")

# How the tests of several mutants begin.
KEYS = "tests/transaction/test_business_keys.py"
OUTBOX = "tests/transaction/test_outbox.py"
DOCUMENTS = "tests/transaction/test_documents.py"
SEVERAL = "tests/transaction/test_several_handlers.py"
INTERRUPTED = "tests/app/test_interrupted_starts.py"
ON_SQLITE = "tests/contract/test_sqlite_contract.py::TestSqliteStore"
ON_POSTGRES = "tests/contract/test_postgres_contract.py::TestPostgresStore"
DIRECT = "tests/edges/test_direct_modes.py"
IN_BEST_EFFORT = "tests/edges/test_guards_in_best_effort.py"
GUARDED_KILLED = "test_a_guarded_run_that_is_killed_at_a_step_does_its_work_once_and_sends_all"
ON_RABBITMQ = "tests/contract/test_rabbitmq.py::TestRabbitConnection"
CALLERS = "tests/store/test_callers_postgres_connection.py"
POSITIONS = "tests/faults/test_positions.py"
FROM_A_DUMP = f"{POSITIONS}::test_what_came_with_a_dump_is_read_whole_and_is_before_all_positions_of_the_new_server"
SWEPT = (
    "tests/transaction/test_two_phase.py::"
    "test_decisions_that_nobody_forgot_are_swept_when_they_are_old_by_the_servers_clock[postgres-two_phase]"
)
DELIVERIES = "tests/deliveries"
WORKERS = f"{DELIVERIES}/test_worker_processes.py"
PURGING = "tests/transaction/test_purging.py"
PURGING_LINES = "tests/transaction/test_purging_the_journal.py"
ARCHIVED_REPLAY = "tests/pipeline/test_archived_replay.py"
STATE = "tests/pipeline/test_audit_state.py"
VERDICTS = "tests/pipeline/test_letter_verdicts.py"
ARCHIVER = "tests/pipeline/test_archiver.py"
PUSHDOWN = "tests/pipeline/test_pushdown.py"
ACCEPTING = "tests/gateway/test_accepting.py"
RAW_BYTES = "tests/gateway/test_raw_bytes.py"
OPEN_CONNECTIONS = "tests/gateway/test_open_connections.py"
BROKER_DOCTOR = "tests/edges/test_doctor_of_brokers.py"
HOSTILE = "tests/gateway/test_hostile_requests.py"
AMOUNTS = "tests/transaction/test_recorded_amounts.py"
STREAM = "tests/pipeline/test_stream_positions.py"
RECONCILED = "tests/pipeline/test_deliveries.py"
TASK_PLAN = "tests/pipeline/test_task_plan.py"
FRAMES = "tests/pipeline/test_initiate_frames.py"
BATCHES = "tests/pipeline/test_sink_batches.py"
ROW_VALUES = "tests/pipeline/test_row_values.py"
OVER_STOMP = "tests/broker/test_stomp_connection.py"
DJANGO = "tests/integrations/test_django_sessions.py"
TYPES = "tests/integrations/test_pydantic_and_attrs.py"
AWAITING = "tests/edge/test_awaiting.py"
SESSIONS = "tests/integrations/test_sqlalchemy_sessions.py"
AGAIN = "test_a_run_that_used_the_session_alone_is_handled_again_after_a_refused_commit"
JOINED_SESSIONS = "tests/integrations/test_joining_a_sqlalchemy_session.py"
JAVA_ENDS = "tests/pipeline/test_java.py::test_session_of_a_command_waits_until_java_has_ended"


@dataclass(frozen=True)
class Mutant:
    """One edit that breaks one promise.

    ``promise``  the first cell of a row of ARCHITECTURE's table
    ``file``     a path below ``src/``
    ``find``     a text that occurs exactly once in the file
    ``tests``    test ids of which at least one must fail
    """

    promise: str
    file: str
    find: str
    replace: str
    tests: Sequence[str]


MUTANTS: Sequence[Mutant] = (
    # Guards
    Mutant(
        promise="a message with a known business key runs no handler, and its caller gets the stored reply",
        file="stagepost/store/sql/statements/admit_key.sql",
        find="DO NOTHING",
        replace="DO UPDATE SET digest = excluded.digest",
        tests=[f"{KEYS}::test_a_message_with_a_known_key_runs_no_handler_and_sends_nothing_again[sqlite-proactive]"],
    ),
    Mutant(
        promise="equal values are equal business keys, in each process",
        file="stagepost/flow/codec.py",
        find="return _encoder.encode(values)",
        replace="return msgspec.json.encode(values, enc_hook=_dump_custom)",
        tests=[f"{KEYS}::test_equal_sets_mappings_and_models_are_equal_keys[memory]"],
    ),
    Mutant(
        promise="a key with other content is a conflict",
        file="stagepost/transaction/guards.py",
        find="    if row.digest != content:",
        replace="    if False:",
        tests=[f"{KEYS}::test_other_content_under_a_key_is_a_dead_letter_that_names_both[memory-proactive]"],
    ),
    Mutant(
        promise="a reactive stage that fails looks for its row first",
        file="stagepost/transaction/attempt.py",
        find="        if is_guarded or isinstance(outcome, Completed | Duplicate | Lost | Returned):",
        replace="        if True:",
        tests=[f"{KEYS}::test_a_reactive_stage_that_fails_because_of_the_first_message_is_a_duplicate[memory]"],
    ),
    Mutant(
        promise="a guarded run in `best_effort` is never repeated, and its bytes are sent",
        file="stagepost/transaction/stored_copies.py",
        find="        self._inbox.recognise(claim)\n",
        replace="        pass\n",
        tests=[
            f"{IN_BEST_EFFORT}::test_a_message_that_the_store_runs_after_a_direct_run_is_recognised_first[sqlite-confirms-reactive]"
        ],
    ),
    Mutant(
        promise="a guarded run in `best_effort` is never repeated, and its bytes are sent",
        file="stagepost/transaction/stored_copies.py",
        find="    session.queue.enqueue(rows)\n",
        replace="",
        tests=[
            f"{IN_BEST_EFFORT}::test_bytes_whose_lease_has_ended_are_sent_by_the_sweep_once[sqlite-confirms-committed]"
        ],
    ),
    Mutant(
        promise="a guarded run in `best_effort` is never repeated, and its bytes are sent",
        file="stagepost/transaction/direct.py",
        find="produced if self._publications else None",
        replace="None",
        tests=[f"{IN_BEST_EFFORT}::{GUARDED_KILLED}[sqlite-confirms-proactive-committed]"],
    ),
    Mutant(
        promise="of a stored copy and a sweep one sends the bytes",
        file="stagepost/store/sql/statements/take_unsent.sql",
        find=" AND is_sent IS NOT TRUE",
        replace="",
        tests=[f"{ON_SQLITE}::test_of_two_that_take_an_unmarked_row_one_gets_it"],
    ),
    Mutant(
        promise="of a done and a new message in one envelope the new one alone runs",
        file="stagepost/transaction/guards.py",
        find='stage.guards.get(name) != "none":',
        replace="False:",
        tests=[
            "tests/transaction/test_guards.py::test_of_a_done_and_a_new_message_in_one_envelope_the_new_one_runs[sqlite-outbox-proactive]"
        ],
    ),
    # The mode outbox
    Mutant(
        promise="the inbox keeps each handled message and the messages it sent",
        file="stagepost/store/sql/statements/admit_message.sql",
        find="DO NOTHING",
        replace="DO UPDATE SET digest = excluded.digest",
        tests=[f"{OUTBOX}::test_a_copy_that_comes_while_it_is_handled_changes_nothing[sqlite-outbox]"],
    ),
    Mutant(
        promise="the inbox keeps each handled message and the messages it sent",
        file="stagepost/transaction/outbox.py",
        find="        self._inbox.record(claim, completed.outgoing, produced)\n",
        replace="",
        tests=[
            f"{OUTBOX}::test_what_was_committed_and_not_sent_is_sent_as_it_was_and_no_handler_runs[sqlite-outbox-committed]"
        ],
    ),
    Mutant(
        promise="the commit that takes a message puts the messages it caused",
        file="stagepost/transaction/outbox.py",
        find="            self._queue_commit.take(claim)\n            self._queue_commit.put(claim, produced)\n",
        replace="            self._queue_commit.session.begin()\n            self._queue_commit.put(claim, produced)\n"
        "            self._queue_commit.session.commit()\n            self._queue_commit.take(claim)\n",
        tests=[f"{OUTBOX}::test_an_owner_that_lost_its_message_after_its_commit_sends_nothing[sqlite-outbox]"],
    ),
    # Retention
    Mutant(
        promise="an outage or a leap of the clock makes no id old",
        file="stagepost/store/sqlite/statements/count_hour.sql",
        find="coalesce(max(number), 0) + 1, :wall_hour,",
        replace="max(coalesce(max(number), 0) + 1, :wall_hour), :wall_hour,",
        tests=[f"{PURGING}::test_an_outage_makes_no_id_old[one]"],
    ),
    Mutant(
        promise="an id is pinned while its flow is open",
        file="stagepost/transaction/purging.py",
        find="ended = [each.key for each in found if each.flow_id not in open_flows]",
        replace="ended = [each.key for each in found]",
        tests=[
            f"{PURGING}::test_an_id_is_pinned_while_its_dead_letter_lives[one]",
            f"{PURGING}::test_an_id_is_pinned_while_its_flow_is_open[one]",
        ],
    ),
    Mutant(
        promise="a purge keeps all lines of a flow that is open",
        file="stagepost/transaction/journal_purge.py",
        find=" - self._retention.open_flows(flows)",
        replace="",
        tests=[f"{PURGING_LINES}::test_a_flow_that_is_open_keeps_all_its_lines_until_it_has_ended[sqlite]"],
    ),
    Mutant(
        promise="a purge keeps all lines of a flow that is open",
        file="stagepost/store/postgres/retention.py",
        find='return self._set("list_recent_flows_of_range", wanted) | self',
        replace="return self",
        tests=[f"{PURGING_LINES}::test_a_flow_that_is_open_keeps_all_its_lines_until_it_has_ended[postgres]"],
    ),
    Mutant(
        promise="a purge keeps all lines of a flow that is open",
        file="stagepost/store/postgres/statements/list_open_flows_of_range.sql",
        find="    UNION SELECT flow_id FROM stagepost_ready\n",
        replace="",
        tests=[f"{PURGING_LINES}::test_a_flow_that_is_open_keeps_all_its_lines_until_it_has_ended[postgres]"],
    ),
    Mutant(
        promise="stored bytes are cleared after they were sent, in each of the three ways",
        file="stagepost/runtime/loop.py",
        find="            transaction.idle()",
        replace="            pass",
        tests=[
            "tests/transaction/test_clearing.py::test_a_thread_without_a_message_at_hand_marks_what_it_put_off[sqlite]"
        ],
    ),
    Mutant(
        promise="stored bytes are cleared after they were sent, in each of the three ways",
        file="stagepost/transaction/sent_marks.py",
        find=">= MARKS_SECONDS",
        replace=">= 10 * MARKS_SECONDS",
        tests=["tests/transaction/test_clearing.py::test_a_busy_thread_marks_in_batches_of_a_maximum_age"],
    ),
    Mutant(
        promise="stored bytes are cleared after they were sent, in each of the three ways",
        file="stagepost/transaction/outbox.py",
        find="produced = self._marks.with_mark(claim, produced)",
        replace="pass",
        tests=["tests/transaction/test_clearing.py::test_the_marking_message_is_in_the_flow[sqlite]"],
    ),
    Mutant(
        promise="two purges at once remove each row once",
        file="stagepost/store/postgres/migrations/0001_first.sql",
        find="IF to_regclass(range) IS NULL THEN",
        replace="IF false THEN",
        tests=["tests/faults/test_purge_of_all_killed.py::test_two_purges_at_once_remove_each_row_once[postgres]"],
    ),
    Mutant(
        promise="dead letters do not keep the effects of later flows",
        file="stagepost/transaction/effects_purge.py",
        find="if not rows and len(journalled - open_flows) > len(open_flows):",
        replace="if not rows:",
        tests=["tests/transaction/test_purging.py::test_effects_of_dead_letters_do_not_keep_the_younger_ones"],
    ),
    Mutant(
        promise="a purge passes no reader of the journal",
        file="stagepost/transaction/journal_purge.py",
        find="else self._unread(mark, hours)",
        replace="else mark",
        tests=[f"{PURGING_LINES}::test_no_line_goes_that_a_reader_has_not_read[sqlite]"],
    ),
    Mutant(
        promise="a purge passes no reader of the journal",
        file="stagepost/store/sql/statements/list_held.sql",
        find="FROM stagepost_audit_state WHERE",
        replace="FROM stagepost_audit_state WHERE false AND",
        tests=[f"{PURGING_LINES}::test_no_line_goes_that_a_reader_has_not_read[sqlite-audit]"],
    ),
    Mutant(
        promise="the archive is what manifests name, and one archiver adds that of a range",
        file="stagepost/pipeline/archiver.py",
        find="            if (0 if last is None else last.next) != manifest.first or not self._archives.add(taken):\n",
        replace="            if not self._archives.add(taken._replace(first=taken.first + manifest.written_at)):\n",
        tests=[f"{ARCHIVER}::test_of_two_archivers_at_once_one_archives[sqlite]"],
    ),
    Mutant(
        promise="nothing is deleted whose copy was not read back",
        file="stagepost/pipeline/archiver.py",
        find="        if found != written:\n",
        replace="        if False:\n",
        tests=[f"{ARCHIVER}::test_nothing_is_deleted_if_the_files_do_not_have_what_was_read"],
    ),
    Mutant(
        promise="a store with an archive purges only what is archived",
        file="stagepost/transaction/journal_purge.py",
        find="        if archives.archive() is None:\n",
        replace="        if True:\n",
        tests=[f"{ARCHIVER}::test_the_purge_leaves_the_store_to_its_archive_until_that_is_ended[sqlite]"],
    ),
    Mutant(
        promise="a letter that moved while it was archived counts in the store alone",
        file="stagepost/pipeline/archiver.py",
        find="struck = tuple(each for each in ids if each not in removed)",
        replace="struck = ()",
        tests=[f"{ARCHIVER}::test_a_letter_that_is_edited_or_replayed_meanwhile_is_struck[sqlite]"],
    ),
    Mutant(
        promise="a manifest appears after all with lower ids",
        file="stagepost/store/postgres/statements/add_manifest.sql",
        find="pg_advisory_xact_lock(2946188353)",
        replace="2946188353",
        tests=[f"{ON_POSTGRES}::test_manifests_have_their_ids_in_the_order_of_their_commits"],
    ),
    Mutant(
        promise="a letter comes back from the archive once",
        file="stagepost/pipeline/archived_replay.py",
        find='        if verdict.outcome != "started":',
        replace="        if False:",
        tests=[f"{ARCHIVED_REPLAY}::test_a_letter_comes_back_once_with_its_id_and_its_bytes[sqlite]"],
    ),
    Mutant(
        promise="a letter stays in the archive while an outbox has its message",
        file="stagepost/pipeline/archived_replay.py",
        find="self._access.is_held(letter.stage, letter.message_id) or ",
        replace="",
        tests=[f"{ARCHIVED_REPLAY}::test_a_message_that_waits_only_in_the_second_file_lives"],
    ),
    Mutant(
        promise="a replay from the archive sees a commit whose line leaves the store meanwhile",
        file="stagepost/pipeline/archived_replay.py",
        find="            archived = commits.read()\n",
        replace="            archived = commits._found\n",
        tests=[f"{ARCHIVED_REPLAY}::test_a_commit_whose_line_leaves_the_store_after_the_look_is_seen[sqlite-archived]"],
    ),
    Mutant(
        promise="a replay from the archive sees a commit whose line leaves the store meanwhile",
        file="stagepost/pipeline/archived_replay.py",
        find="            self._check_provable(origins, parts)\n            archived",
        replace="            parts.look()\n            archived",
        tests=[f"{ARCHIVED_REPLAY}::test_a_commit_whose_line_leaves_the_store_after_the_look_is_seen[sqlite-purged]"],
    ),
    Mutant(
        promise="a report reads each line once, from the archive or from the store",
        file="stagepost/pipeline/archived_journal.py",
        find='lines=f"{archived.next}:{NUMBER_MAX}"',
        replace='lines=f"0:{NUMBER_MAX}"',
        tests=["tests/pipeline/test_archived_reports.py::test_an_audit_finds_the_same_in_the_archive"],
    ),
    Mutant(
        promise="a report over the archive says a gap",
        file="stagepost/pipeline/archived_journal.py",
        find="        has_gap = has_gap or each.has_gap\n",
        replace="        has_gap = has_gap or (each.has_gap and each.kind == 'journal')\n",
        tests=["tests/pipeline/test_archived_reports.py::test_a_gap_in_the_archive_is_told[postgres]"],
    ),
    Mutant(
        promise="a dead message is not lost while its letter may have left by age",
        file="stagepost/store/sql/statements/note_removed_letters.sql",
        find="WHERE CAST(stagepost_meta.value AS bigint) < CAST(excluded.value AS bigint)\n",
        replace="",
        tests=[
            "tests/pipeline/test_archived_reports.py::test_letters_that_leave_by_age_leave_the_latest_death[sqlite]"
        ],
    ),
    Mutant(
        promise="an archive that was ended takes nothing over",
        file="stagepost/pipeline/archiver.py",
        find="        if self._archives.archive() != self._folder.identity.archive:\n",
        replace="        if False:\n",
        tests=[f"{ARCHIVER}::test_an_archive_that_is_ended_meanwhile_takes_nothing_over"],
    ),
    Mutant(
        promise="an id of a broker's message outlives the copies at its broker",
        file="stagepost/store/sql/statements/find_caught_up.sql",
        find="SELECT min(hour)",
        replace="SELECT max(hour)",
        tests=[
            (
                "tests/liveness/test_caught_up.py::"
                "test_an_id_goes_when_all_brokers_of_its_address_were_caught_up_after_a_week"
            )
        ],
    ),
    Mutant(
        promise="an id of a broker's message outlives the copies at its broker",
        file="stagepost/store/sql/statements/note_caught_up.sql",
        find="min(hour)",
        replace="max(hour)",
        tests=[
            "tests/liveness/test_caught_up.py::test_an_address_is_caught_up_when_no_living_consumer_holds_a_message",
        ],
    ),
    # The mode two_phase
    Mutant(
        promise="a decision against a commit is a row",
        file="stagepost/transaction/two_phase.py",
        find="        if decision is not None:\n            return decision\n",
        replace="        return decision is True\n",
        tests=[
            (
                "tests/transaction/test_two_phase.py::test_a_coordinator_that_is_too_late_fails_and_does_not_disagree"
                "[postgres-two_phase]"
            )
        ],
    ),
    # Sinks
    Mutant(
        promise="sinks learn of the commit before another database gets the messages",
        file="stagepost/transaction/unit_of_work.py",
        find="        if self.sinks is not None:\n            self.sinks.end(is_committed=True)\n"
        "        self._mode.deliver(self._claim, self._produced)\n",
        replace="        self._mode.deliver(self._claim, self._produced)\n"
        "        if self.sinks is not None:\n            self.sinks.end(is_committed=True)\n",
        tests=[
            (
                "tests/transaction/test_sinks.py::test_an_outage_after_the_commit_of_the_work_is_no_failure"
                "_and_a_duplicate_has_no_sinks[memory-outbox]"
            )
        ],
    ),
    Mutant(
        promise="a sink's error after the commit changes nothing",
        file="stagepost/transaction/sinks.py",
        find="        except BaseException as error:\n",
        replace="        except Exception as error:\n",
        tests=[
            "tests/transaction/test_sinks.py::test_errors_after_the_commit_are_logged_and_change_nothing[memory-success-error1]"
        ],
    ),
    Mutant(
        promise="the services of an envelope outlive its handlers and sinks",
        file="stagepost/transaction/attempt.py",
        find="            factories = (partial(ScopeSink, self._scopes, unit.enter), *factories)\n",
        replace="            factories = (*factories, partial(ScopeSink, self._scopes, unit.enter))\n",
        tests=[
            "tests/transaction/test_scopes.py::test_the_services_outlive_every_sink_of_their_envelope[memory-dictionary]"
        ],
    ),
    Mutant(
        promise="the services of an envelope outlive its handlers and sinks",
        file="stagepost/integrations/svcs.py",
        find="        self._on_close[noted:] = sorted(new, key=lambda clean_up: clean_up[0].svc_type == wanted[0])\n",
        replace="        del new\n",
        tests=[
            (
                "tests/transaction/test_scopes.py::test_a_handler_gets_its_services_by_parameter_and_by_call"
                "_and_each_is_made_once[memory-svcs-plain]"
            )
        ],
    ),
    # Several handlers
    Mutant(
        promise="two handlers that send the same thing send two messages",
        file="stagepost/flow/ids.py",
        find='        name = f"{name}{SEPARATOR}{handler}"\n',
        replace="        del handler\n",
        tests=[f"{SEVERAL}::test_two_handlers_that_send_the_same_thing_send_two_messages_and_repeat_their_ids[memory]"],
    ),
    Mutant(
        promise="the sends of one envelope have different places in the journal",
        file="stagepost/flow/context.py",
        find="            self._result.ordinals[kind, address] = place + 1\n",
        replace="",
        tests=[f"{SEVERAL}::test_messages_find_their_handlers_by_type_and_each_gets_its_reply[memory]"],
    ),
    # The queue
    Mutant(
        promise="only the owner of a message commits it",
        file="stagepost/store/sql/statements/remove_claimed.sql",
        find="id = :id AND owner IS NOT DISTINCT FROM :owner AND deliveries = :deliveries AND message_id = :message_id",
        replace="id = :id AND :owner::text <> '' AND :deliveries::bigint > 0 AND message_id = :message_id",
        tests=[f"{ON_SQLITE}::test_a_claim_whose_fence_does_not_match_changes_nothing[of another owner]"],
    ),
    Mutant(
        promise="only the owner of a message commits it",
        file="stagepost/store/postgres/statements/take_claimed.sql",
        find="id = :id AND owner IS NOT DISTINCT FROM :owner AND deliveries = :deliveries AND message_id = :message_id",
        replace="id = :id AND :owner::text <> '' AND :deliveries::bigint > 0 AND message_id = :message_id",
        tests=[
            (
                "tests/contract/test_postgres_contract.py::TestClaimingOnPostgres::"
                "test_nothing_is_taken_deferred_or_released_where_the_fence_does_not_match[of another owner]"
            )
        ],
    ),
    Mutant(
        promise="ids of deleted rows are never used again",
        file="stagepost/store/sqlite/migrations/0001_first.sql",
        find="CREATE TABLE stagepost_ready (\n    id          INTEGER PRIMARY KEY AUTOINCREMENT,",
        replace="CREATE TABLE stagepost_ready (\n    id          INTEGER PRIMARY KEY,",
        tests=[f"{ON_SQLITE}::test_a_row_is_never_used_for_another_message"],
    ),
    Mutant(
        promise="a failing fence fails the commit",
        file="stagepost/store/postgres/statements/take_claimed.sql",
        find="ELSE stagepost_lease_lost() END",
        replace="ELSE false END",
        tests=[
            "tests/transaction/test_failures.py::test_an_owner_that_lost_its_message_changes_nothing[postgres-True]"
        ],
    ),
    Mutant(
        promise="a look for work and the next claim begin at the same row",
        file="stagepost/store/postgres/queue.py",
        find="            claims = super()._claim_ready(stages, limit, owner)\n",
        replace="            self._low_water.decide()\n"
        "            claims = super()._claim_ready(stages, limit, owner)\n",
        tests=["tests/store/test_postgres_queue.py::test_what_came_in_below_the_mark_is_found_by_the_next_sweep"],
    ),
    Mutant(
        promise="a thread that keeps a failed message takes no other one, and its failures are written",
        file="stagepost/store/sql/statements/keep_claimed.sql",
        find="failures = :failures, ",
        replace="",
        tests=[f"{ON_SQLITE}::test_a_kept_message_has_a_new_claim_of_its_owner_and_its_failures"],
    ),
    Mutant(
        promise="a thread that keeps a failed message takes no other one, and its failures are written",
        file="stagepost/runtime/blocking.py",
        find="        if is_first:\n",
        replace="        if False:\n",
        tests=["tests/liveness/test_blocked_thread.py"],
    ),
    Mutant(
        promise="no message of a paused stage is claimed",
        file="stagepost/store/sqlite/statements/claim_ready.sql",
        find="    WHERE NOT EXISTS (SELECT 1 FROM stagepost_circuit AS p "
        "WHERE p.stage = s.value AND p.paused_at IS NOT NULL)\n",
        replace="",
        tests=[f"{ON_SQLITE}::test_nothing_of_a_paused_stage_is_claimed_and_all_of_the_others"],
    ),
    Mutant(
        promise="no message of a paused stage is claimed",
        file="stagepost/store/sqlite/statements/has_claimable.sql",
        find="      AND NOT EXISTS (SELECT 1 FROM stagepost_circuit WHERE stage = s.value AND paused_at IS NOT NULL)\n",
        replace="",
        tests=[f"{ON_SQLITE}::test_nothing_of_a_paused_stage_is_claimed_and_all_of_the_others"],
    ),
    Mutant(
        promise="no message of a paused stage is claimed",
        file="stagepost/store/postgres/statements/claim_ready.sql",
        find="          AND (SELECT p.paused_at FROM stagepost_circuit AS p WHERE p.stage = s.stage) IS NULL\n",
        replace="",
        tests=[f"{ON_POSTGRES}::test_nothing_of_a_paused_stage_is_claimed_and_all_of_the_others"],
    ),
    Mutant(
        promise="no message of a paused stage is claimed",
        file="stagepost/store/postgres/statements/has_claimable.sql",
        find="      AND NOT EXISTS (SELECT 1 FROM stagepost_circuit AS p "
        "WHERE p.stage = s.stage AND p.paused_at IS NOT NULL)\n",
        replace="",
        tests=[f"{ON_POSTGRES}::test_nothing_of_a_paused_stage_is_claimed_and_all_of_the_others"],
    ),
    # The handler's transaction
    Mutant(
        promise="the handler cannot end the transaction",
        file="stagepost/store/sqlite/connection.py",
        find="        if action in OUTLIVING or changes:\n",
        replace="        if changes:\n",
        tests=[
            (
                "tests/transaction/test_guarded_sqlite_connection.py::"
                "test_a_statement_that_would_end_the_transaction_is_refused_whatever_way_it_comes[sqlite3.Cursor-COMMIT]"
            )
        ],
    ),
    Mutant(
        promise="Stagepost reads its own rows as bytes and decodes them",
        file="stagepost/store/sqlite/statements/list_subscriptions.sql",
        find="CAST(topic AS BLOB), CAST(subscriber AS BLOB), CAST(app AS BLOB)",
        replace="topic, subscriber, app",
        tests=[
            (
                "tests/app/test_joining_the_callers_transaction.py::"
                "test_whatever_the_caller_has_made_of_the_connection_changes_nothing[texts that are nothing]"
            )
        ],
    ),
    Mutant(
        promise="Stagepost reads its own rows as bytes and decodes them",
        file="stagepost/store/sqlite/statements/find_accepted.sql",
        find="CAST(digest AS BLOB)",
        replace="digest",
        tests=[
            (
                "tests/app/test_joining_the_callers_transaction.py::"
                "test_whatever_the_caller_has_made_of_the_connection_changes_nothing[texts that are nothing]"
            )
        ],
    ),
    Mutant(
        promise="an error while settling is a failure of the message",
        file="stagepost/transaction/refusal.py",
        find="    if failed is None:\n        return failure(stage, claim, error, random)\n",
        replace="    if failed is None:\n        raise error\n",
        tests=[
            (
                "tests/transaction/test_outcomes_on_sqlite.py::"
                "test_a_deferred_constraint_that_fails_at_the_commit_is_a_failure_of_the_attempt"
            )
        ],
    ),
    Mutant(
        promise="a forked child settles nothing",
        file="stagepost/transaction/attempt.py",
        find="            unit_of_work.end_forked_child()\n",
        replace="",
        tests=["tests/app/test_forking.py::test_a_child_that_returns_from_its_handler_is_ended_and_settles_nothing"],
    ),
    Mutant(
        promise="an outage counts against no message",
        file="stagepost/store/sqlite/connection.py",
        find="        if is_outage(error):\n            self.outage = error\n",
        replace="",
        tests=["tests/transaction/test_outages.py::test_a_disk_that_fails_while_rows_are_read_counts_against_nobody"],
    ),
    Mutant(
        promise="an outage counts against no message",
        file="stagepost/store/postgres/connection_loan.py",
        find="            self.outage = error\n",
        replace="            pass\n",
        tests=[
            (
                "tests/store/test_postgres_sessions.py::"
                "test_a_connection_lost_under_a_handler_is_told_whatever_the_handler_makes_of_it"
            )
        ],
    ),
    Mutant(
        promise="an outage counts against no message",
        file="stagepost/transaction/attempt.py",
        find="            raise outage from error\n",
        replace="            error = error or outage\n",
        tests=["tests/transaction/test_outages.py::test_a_disk_that_fails_while_rows_are_read_counts_against_nobody"],
    ),
    # The file and its locks
    Mutant(
        promise="a process opens its lock file and its writer lock once",
        file="stagepost/store/sqlite/lock_file.py",
        find="    return _own(path) in _mine\n",
        replace="    return False\n",
        tests=["tests/liveness/test_lock_file.py::test_a_process_may_hold_several_and_never_opens_one_of_its_own"],
    ),
    Mutant(
        promise="a process opens its lock file and its writer lock once",
        file="stagepost/store/sqlite/writer_lock.py",
        find="            writer_lock = self._writer_locks.get(path)\n",
        replace="            writer_lock = None\n",
        tests=["tests/store/test_writer_lock.py::test_one_file_has_one_writer_lock_in_a_process_whatever_it_is_called"],
    ),
    Mutant(
        promise="a writer locks `NEXT` before it locks `WRITER`",
        file="stagepost/store/sqlite/writer_lock.py",
        find="            for byte in (NEXT, WRITER):\n",
        replace="            for byte in (WRITER,):\n",
        tests=["tests/store/test_writer_lock.py::test_a_writer_does_not_overtake_the_process_that_is_next"],
    ),
    Mutant(
        promise="held locks are looked up, not remembered",
        file="stagepost/store/sqlite/writer_lock.py",
        find="        if self._is_mine and self._inside in (user, None):\n",
        replace="        if self._inside is user:\n",
        tests=[f"{INTERRUPTED}::test_an_interrupt_anywhere_leaves_nothing_behind[warm-sqlite]"],
    ),
    Mutant(
        promise="held locks are looked up, not remembered",
        file="stagepost/runtime/pool.py",
        find="        try:\n            self._enter(place)\n",
        replace="        self._enter(place)\n        try:\n",
        tests=[f"{INTERRUPTED}::test_an_interrupt_anywhere_leaves_nothing_behind[warm-memory]"],
    ),
    Mutant(
        promise="held locks are looked up, not remembered",
        file="stagepost/store/sqlite/session.py",
        find="        # Not after an interrupt: the transaction is open still, and rolled back by the next call.\n"
        "        self._leave()\n",
        replace="        finally:\n            self._leave()\n",
        tests=[f"{INTERRUPTED}::test_an_interrupt_anywhere_leaves_nothing_behind[conflict-sqlite]"],
    ),
    Mutant(
        promise="a lock belongs to the file, not to its name",
        file="stagepost/store/sqlite/store.py",
        find="        file = path.resolve()\n",
        replace="        file = path.absolute()\n",
        tests=["tests/store/test_file_names.py::test_a_file_with_two_names_has_one_lock_and_one_folder_of_lock_files"],
    ),
    Mutant(
        promise="only Python's own `sqlite3` opens the file",
        file="stagepost/store/sqlite/export.py",
        find="    try:\n        # Not mode=ro:",
        replace="    path.read_bytes()\n    try:\n        # Not mode=ro:",
        tests=["tests/store/test_sqlite_sessions.py::test_an_export_keeps_the_locks_that_the_process_has_on_the_file"],
    ),
    Mutant(
        promise="a worker stops when its database is replaced",
        file="stagepost/store/sqlite/store.py",
        find="            return _identity(self._name) != self._file\n",
        replace="            return _identity(self._name) is None\n",
        tests=[
            (
                "tests/store/test_sqlite_sessions.py::"
                "test_a_file_that_is_gone_or_another_one_is_told_from_a_disk_that_does_not_answer"
            )
        ],
    ),
    Mutant(
        promise="a worker stops when its database is replaced",
        file="stagepost/worker/supervisor.py",
        find="        if self._engine.store.is_replaced():\n",
        replace="        if self._exit_code and self._engine.store.is_replaced():\n",
        tests=[
            "tests/faults/test_replaced_database.py::test_a_worker_whose_database_is_taken_away_stops_and_says_so[replaced]"
        ],
    ),
    # Brokers
    Mutant(
        promise="ActiveMQ commits only a transaction whose frames were all answered",
        file="stagepost/broker/activemq/connection.py",
        find="        refusal = next((each for each in errors if each is not None), None)\n",
        replace="        refusal = errors[0]\n",
        tests=[f"{OVER_STOMP}::test_an_error_in_a_transaction_aborts_it[SEND]"],
    ),
    Mutant(
        promise="a delivery of ActiveMQ that went elsewhere is in no transaction",
        file="stagepost/broker/activemq/subscriptions.py",
        find="            return all(each.ack is not None for each in tokens)\n",
        replace="            return True\n",
        tests=[f"{OVER_STOMP}::test_a_delivery_that_went_elsewhere_is_in_no_transaction"],
    ),
    Mutant(
        promise="an acknowledgement that ActiveMQ refuses loses the connection",
        file="stagepost/broker/activemq/subscriptions.py",
        find="            if error is not None:\n                # The broker counts",
        replace="            if False:\n                # The broker counts",
        tests=[f"{OVER_STOMP}::test_an_acknowledgement_that_is_refused_loses_the_connection[last]"],
    ),
    Mutant(
        promise="a process notes how it sees its broker when that changes",
        file="stagepost/runtime/edge_notes.py",
        find="        if seen != self._seen:\n",
        replace="        if self._seen is None:\n",
        tests=["tests/edges/test_edge_notes.py::test_a_change_is_noted_at_once_and_counts_once_in_a_while"],
    ),
    Mutant(
        promise="the mark at the head names the store of an address",
        file="stagepost/broker/activemq/ownership.py",
        find="            head = self._head(address)\n            if head is None:\n                raise",
        replace='            head = Frame("MESSAGE", {STORE: store, MARK: mark})\n            if head is None:\n'
        "                raise",
        tests=[
            (
                "tests/broker/test_activemq_marks.py::"
                "test_a_store_that_is_not_at_the_head_is_refused_and_leaves_no_mark[queue1]"
            )
        ],
    ),
    # Who is alive
    Mutant(
        promise="owners are read before living processes",
        file="stagepost/liveness/takeover.py",
        find="        owners = {owner for owner in self._queue.owners() if "
        'owner.startswith(f"{self._app_name}/")}\n'
        "        found = self._detector.look()\n",
        replace="        found = self._detector.look()\n"
        "        owners = {owner for owner in self._queue.owners() if "
        'owner.startswith(f"{self._app_name}/")}\n',
        tests=["tests/liveness/test_takeover.py::test_what_is_claimed_while_a_sweep_looks_who_lives_is_left_alone"],
    ),
    Mutant(
        promise="a lock file, or row, is locked before others see it",
        file="stagepost/store/sqlite/lock_file.py",
        find="        fcntl.lockf(descriptor, fcntl.LOCK_EX)\n"
        "        try:\n"
        "            _share(descriptor, path.parent)\n"
        "            os.pwrite(descriptor, content, 0)\n"
        "            unborn.rename(path)\n",
        replace="        try:\n"
        "            _share(descriptor, path.parent)\n"
        "            os.pwrite(descriptor, content, 0)\n"
        "            unborn.rename(path)\n"
        "            fcntl.lockf(descriptor, fcntl.LOCK_EX)\n",
        tests=["tests/liveness/test_lock_file.py::test_no_process_sees_a_lock_file_that_is_not_locked_yet"],
    ),
    Mutant(
        promise="a lock file, or row, is locked before others see it",
        file="stagepost/store/postgres/worker_registry.py",
        find='        number = int(self._one("next_incarnation"))\n'
        "        while not self._lock(number):\n"
        "            # The numbers begin again after all were used, and an incarnation may live that long.\n"
        '            number = int(self._one("next_incarnation"))\n'
        "        self._write_down(number, registration)\n",
        replace='        number = int(self._one("next_incarnation"))\n'
        "        self._write_down(number, registration)\n"
        "        self._lock(number)\n",
        tests=["tests/liveness/test_lock_row.py::test_nobody_sees_one_that_lives_and_is_not_locked"],
    ),
    Mutant(
        promise="a message that comes back runs alone",
        file="stagepost/transaction/queue_commit.py",
        find="    return claim.deliveries == 1 and not claim.failures\n",
        replace="    return not claim.failures\n",
        tests=["tests/liveness/test_prefetcher.py::test_what_came_back_is_handed_out_alone"],
    ),
    Mutant(
        promise="a message that comes back runs alone",
        file="stagepost/store/postgres/statements/list_incarnations.sql",
        find="(r.deliveries > 1 OR r.stage <> ALL (i.batched)",
        replace="(r.stage <> ALL (i.batched)",
        tests=["tests/liveness/test_lock_row.py::test_which_of_a_batch_ran_is_not_known_but_for_what_was_said_of_it"],
    ),
    Mutant(
        promise="a process that breaks off marks all its messages as abandoned",
        file="stagepost/store/sqlite/lock_file.py",
        find="        # Not slot by slot: others may begin the next message meanwhile.\n"
        "        self._record[:HEADER_BYTES] = "
        "_encoded(msgspec.structs.replace(self._header, is_abandoned=True))\n",
        replace="        for slot, fence in enumerate(self._slots):\n"
        "            if fence:\n"
        '                self._write(slot, f"abandoned {fence}")\n',
        tests=["tests/liveness/test_lock_file.py::test_what_is_begun_after_all_was_abandoned_is_abandoned_as_well"],
    ),
    Mutant(
        promise="a process that breaks off marks all its messages as abandoned",
        file="stagepost/store/postgres/worker_registry.py",
        find='    otherwise = known.get(ALL_OTHERS, "running")\n',
        replace='    otherwise = "running"\n',
        tests=[
            "tests/liveness/test_lock_row.py::test_who_abandons_what_he_runs_abandons_what_he_has_not_begun_as_well"
        ],
    ),
    # Positions of the journal on PostgreSQL
    Mutant(
        promise="a position of the journal is on the disk before it is given out",
        file="stagepost/store/postgres/statements/journal_position.sql",
        find="pg_logical_emit_message(true, ",
        replace="pg_logical_emit_message(false, ",
        tests=[f"{POSITIONS}::test_no_number_below_a_position_is_given_out_again_after_a_crash"],
    ),
    Mutant(
        promise="a position counts in its own epoch only",
        file="stagepost/store/postgres/statements/find_epoch.sql",
        find="md5(concat_ws(' ', here.uuid, here.lineage, here.timeline))",
        replace="md5(concat_ws(' ', here.uuid, here.lineage))",
        tests=[f"{POSITIONS}::test_a_position_of_before_a_promotion_is_refused_and_what_was_read_can_be_read_again"],
    ),
    Mutant(
        promise="a position counts in its own epoch only",
        file="stagepost/ports/journal.py",
        find="        for each in (self.begin, self.end):\n",
        replace="        for each in (self.begin,):\n",
        tests=[f"{POSITIONS}::test_a_position_of_before_a_promotion_is_refused_and_what_was_read_can_be_read_again"],
    ),
    Mutant(
        promise="rows that came with a dump are before all positions",
        file="stagepost/store/postgres/migrate.py",
        find='            restored = 0 if known is None else _value(connection, "last_waypoint")\n',
        replace="            restored = 0\n",
        tests=[FROM_A_DUMP],
    ),
    Mutant(
        promise="rows that came with a dump are before all positions",
        file="stagepost/store/postgres/statements/export_journal.sql",
        find="CASE WHEN id <= :restored::bigint THEN",
        replace="CASE WHEN id <= :restored::bigint AND txid < :end::bigint THEN",
        tests=[FROM_A_DUMP],
    ),
    # Decisions of the mode two_phase
    Mutant(
        promise="prepared transactions are listed after the decisions",
        file="stagepost/transaction/two_phase.py",
        find="        kept = [\n"
        "            *decisions.kept(KEPT_COMMITTED, SWEPT_MAX, is_commit=True),\n"
        "            *decisions.kept(KEPT_OVERRULED, SWEPT_MAX, is_commit=False),\n"
        "        ]\n"
        "        # Read the prepared ones second. A transaction is prepared before its decision, "
        "so an absent one is carried out.\n"
        "        prepared = {each.gid for each in self._queue.prepared.in_doubt(self._prefix)}\n",
        replace="        prepared = {each.gid for each in self._queue.prepared.in_doubt(self._prefix)}\n"
        "        kept = [\n"
        "            *decisions.kept(KEPT_COMMITTED, SWEPT_MAX, is_commit=True),\n"
        "            *decisions.kept(KEPT_OVERRULED, SWEPT_MAX, is_commit=False),\n"
        "        ]\n",
        tests=[
            (
                "tests/transaction/test_two_phase.py::"
                "test_a_decision_is_not_forgotten_while_its_transaction_is_prepared[postgres-two_phase-True]"
            )
        ],
    ),
    Mutant(
        promise="the server that keeps a decision tells its age",
        file="stagepost/store/postgres/decisions.py",
        find='        is_first = self._run("decide", (gid, is_commit)).rowcount == 1\n',
        replace="        from stagepost.flow.clock import SystemClock\n"
        "        from stagepost.store.postgres.statements import SQL, Statement\n"
        "        ours = b'to_timestamp(%d)' % (SystemClock().now() // 1_000_000)\n"
        '        decide = Statement(SQL["decide"].text.replace(b"clock_timestamp()", ours), SQL["decide"].names)\n'
        "        is_first = self._wire.run(decide, (gid, is_commit)).rowcount == 1\n",
        tests=[SWEPT],
    ),
    Mutant(
        promise="the server that keeps a decision tells its age",
        file="stagepost/store/postgres/decisions.py",
        find='        return [gid for (gid,) in self._run("list_decisions", wanted).fetchall()]\n',
        replace="        from stagepost.flow.clock import SystemClock\n"
        "        from stagepost.store.postgres.statements import SQL, Statement\n"
        '        text, names = SQL["list_decisions"]\n'
        "        ours = b'to_timestamp(%d)' % (SystemClock().now() // 1_000_000)\n"
        '        kept = Statement(text.replace(b"statement_timestamp()", ours), names)\n'
        "        return [gid for (gid,) in self._wire.run(kept, wanted).fetchall()]\n",
        tests=[SWEPT],
    ),
    # Sessions on PostgreSQL
    Mutant(
        promise="only Stagepost's fence means a lost lease",
        file="stagepost/store/postgres/statement_pipeline.py",
        find="        return error.sqlstate == LEASE_LOST and queued is not None and queued.text in FENCES\n",
        replace="        return error.sqlstate == LEASE_LOST and queued is not None\n",
        tests=[
            (
                "tests/transaction/test_guarded_postgres_connection.py::"
                "test_a_code_of_stageposts_that_a_handler_raises_is_its_own_failure[a trigger-at once]"
            )
        ],
    ),
    Mutant(
        promise="a process that stands still in a transaction loses it",
        file="stagepost/store/postgres/statements/end_paused.sql",
        find="a.state = 'idle in transaction'",
        replace="a.state = 'active'",
        tests=[
            (
                "tests/store/test_postgres_queue.py::"
                "test_the_transaction_in_which_a_paused_owner_stands_still_is_ended_and_no_other"
            )
        ],
    ),
    # Files that Spark reads
    Mutant(
        promise="both readings of a file are cut at the same places",
        file="stagepost/pipeline/jobs/records.py",
        find="kept.enter_context(with_settings(spark, {BLOCKS_SETTING: str(slots(spark))}))",
        replace="pass",
        tests=["tests/pipeline/test_record_numbers.py::test_number_of_blocks_is_fixed_before_the_first_reading"],
    ),
    Mutant(
        promise="both readings of a file are cut at the same places",
        file="stagepost/pipeline/jobs/records.py",
        find="        offset = self.offsets.get((file, block))\n",
        replace="        offset = self.offsets.get((file, block), 0)\n",
        tests=["tests/pipeline/test_record_numbers.py::test_a_block_that_was_not_counted_has_no_number"],
    ),
    Mutant(
        promise="no record comes from the text after a wrong quote",
        file="stagepost/pipeline/csv_records.py",
        find="            for following in remaining:\n"
        "                if size < KEPT_BYTES:\n"
        "                    kept.append(following)\n"
        "                size += len(following) + 1\n"
        '            yield _rest(kept, size, f"line {quotes.line} has a quote that RFC 4180 does not allow")\n'
        "            return\n",
        replace='            yield _rest(kept, size, f"line {quotes.line} has a quote that RFC 4180 does not allow")\n'
        "            quotes.is_open = False\n"
        "            kept, size = [], 0\n"
        "            continue\n",
        tests=["tests/pipeline/test_csv_records.py::test_all_of_a_file_is_in_its_records_whatever_its_quotes_are"],
    ),
    Mutant(
        promise="rows for an endpoint of several types are all of the type that was named",
        file="stagepost/flow/target.py",
        find="if name or len(types) == 1 else None",
        replace="if True else None",
        tests=[f"{FRAMES}::test_rows_of_no_named_type_are_refused_where_an_endpoint_takes_several"],
    ),
    Mutant(
        promise="a bad value affects its row alone",
        file="stagepost/pipeline/jobs/checking.py",
        find="        except Exception as error:  # noqa: BLE001 - "
        "an error of the message's own __post_init__ concerns one row\n",
        replace="        except ValueError as error:\n",
        tests=["tests/pipeline/test_initiate_formats.py::test_checker_gives_a_row_that_its_message_refuses_a_reason"],
    ),
    Mutant(
        promise="a bad value affects its row alone",
        file="stagepost/pipeline/jobs/checking.py",
        find="        return [_value_of(each) for each in column]\n",
        replace="        return [UnreadableValue(str(column.type))] * len(column)\n",
        tests=["tests/pipeline/test_initiate_formats.py::test_only_the_value_that_python_cannot_hold_is_unreadable"],
    ),
    Mutant(
        promise="each file is read or refused",
        file="stagepost/pipeline/files.py",
        find="        if others:\n",
        replace="        if not by_value:\n",
        tests=["tests/pipeline/test_initiate_unlike.py::test_a_folder_with_folders_and_other_files[address]"],
    ),
    Mutant(
        promise="each file is read or refused",
        file="stagepost/pipeline/jobs/initiate_stream.py",
        find=", maxFileAge=EVER)",
        replace=")",
        tests=[f"{FRAMES}::test_a_stream_reads_files_that_were_written_long_before_they_came"],
    ),
    Mutant(
        promise="a row has one id and one content in every session",
        file="stagepost/pipeline/transforms/identity.py",
        find="    if isinstance(kind, DecimalType):\n",
        replace="    if kind is None:\n",
        tests=[f"{ROW_VALUES}::test_a_decimal_has_one_text_with_ansi_mode_and_without_and_in_the_sink[false]"],
    ),
    Mutant(
        promise="a row has one id and one content in every session",
        file="stagepost/pipeline/jobs/checking.py",
        find='        return pa.timestamp(kind.unit, "UTC") if kind.tz else kind\n',
        replace="        return kind\n",
        tests=[f"{ROW_VALUES}::test_the_sink_starts_a_row_once_from_sessions_in_other_time_zones"],
    ),
    Mutant(
        promise="one task reads a table whose rows move",
        file="pyspark_stagepost/batch.py",
        find="        if self._options.table != DIVIDED:\n            return [Range(None)]\n",
        replace="",
        tests=["tests/pipeline/test_data_source.py::test_dead_letters_are_read_by_one_task_at_one_moment"],
    ),
    Mutant(
        promise="a pushed filter leaves out only rows that Spark drops",
        file="stagepost/store/postgres/arrow_reader.py",
        find="return f'{column} COLLATE \"C\"' if is_range else column",
        replace="return f'{column} COLLATE \"und-x-icu\"' if is_range else column",
        tests=[f"{PUSHDOWN}::test_a_pushed_filter_leaves_out_no_row_that_spark_keeps[postgres]"],
    ),
    Mutant(
        promise="a pushed filter leaves out only rows that Spark drops",
        file="pyspark_stagepost/batch.py",
        find="return list(filters)",
        replace="return []",
        tests=[f"{PUSHDOWN}::test_a_pushed_filter_leaves_out_no_row_that_spark_keeps[sqlite]"],
    ),
    Mutant(
        promise="a stream that continues under another name has a cursor of it",
        file="pyspark_stagepost/stream.py",
        find="            assert span.begin is not None\n            self._keep_cursor(span.begin)\n",
        replace="",
        tests=[f"{STREAM}::test_a_stream_that_continues_under_another_name_has_a_cursor_of_that_name[sqlite-again]"],
    ),
    Mutant(
        promise="a stream that continues under another name has a cursor of it",
        file="pyspark_stagepost/stream.py",
        find="                session.cursors.advance(self._reader, begin, now)\n",
        replace="",
        tests=[f"{STREAM}::test_a_stream_that_continues_under_another_name_has_a_cursor_of_that_name[sqlite-next]"],
    ),
    Mutant(
        promise="a stream's cursor keeps its first position",
        file="pyspark_stagepost/stream.py",
        find="return _offset(self._cursor().first)",
        replace="return _offset(self._cursor().position)",
        tests=[f"{STREAM}::test_a_reader_keeps_its_first_position_and_its_cursor_only_moves_forward[sqlite]"],
    ),
    Mutant(
        promise="a batch of Spark is committed once",
        file="stagepost/store/sql/staging.py",
        find="        return BatchContent(rows, text_of(digest))",
        replace="        return None",
        tests=[f"{BATCHES}::test_a_batch_that_comes_again_in_other_tasks_and_another_order_is_skipped[sqlite]"],
    ),
    Mutant(
        promise="a batch that comes again with other rows is not skipped",
        file="stagepost/pipeline/sink.py",
        find="        if known != content:\n            if known is not None:",
        replace="        if known is None:\n            if known is not None:",
        tests=[f"{BATCHES}::test_a_batch_that_comes_again_with_other_rows_fails_and_says_why[sqlite]"],
    ),
    Mutant(
        promise="a batch that comes again with other rows is not skipped",
        file="stagepost/pipeline/sink.py",
        find="self.sum = (self.sum + int.from_bytes",
        replace="self.sum = (self.sum ^ int.from_bytes",
        tests=[f"{BATCHES}::test_equal_rows_do_not_cancel_each_other[sqlite]"],
    ),
    Mutant(
        promise="a batch starts only if all of its staged rows are there",
        file="stagepost/pipeline/sink.py",
        find="            if counts.rows_in != content.rows:",
        replace="            if not counts.is_balanced:",
        tests=[f"{BATCHES}::test_staged_rows_that_are_gone_fail_the_batch_whatever_was_accepted_of_them[sqlite]"],
    ),
    Mutant(
        promise="a task looks at the purge mark after its rows",
        file="pyspark_stagepost/batch.py",
        find="check_purged(store.purged_until(), part.floor)",
        replace="pass",
        tests=[f"{STREAM}::test_a_read_of_the_whole_journal_fails_if_some_of_it_is_purged_meanwhile[sqlite]"],
    ),
    Mutant(
        promise="Java ends before its command",
        file="stagepost/pipeline/session.py",
        find="    gateway.proc.wait()\n",
        replace="",
        tests=[JAVA_ENDS],
    ),
    Mutant(
        promise="Java ends before its command",
        file="stagepost/cli/spark.py",
        find="    finally:\n        end_java()\n",
        replace="    except StoreError:\n        end_java()\n        raise\n",
        tests=[JAVA_ENDS],
    ),
    Mutant(
        promise="each slot has a claim loop",
        file="stagepost/pipeline/jobs/rounds.py",
        find="                self._follow(self._loops.slots())\n",
        replace="",
        tests=["tests/pipeline/test_rounds.py::test_each_slot_gets_a_loop_and_so_does_each_that_comes_later"],
    ),
    Mutant(
        promise="work is divided by the slots of all executors",
        file="stagepost/pipeline/session.py",
        find="(not seen or now - changed < SETTLED_SECONDS)",
        replace="not seen",
        tests=["tests/pipeline/test_slots.py::test_a_job_is_divided_when_no_further_executor_joins"],
    ),
    Mutant(
        promise="an audit that loses what an executor had read reads again",
        file="stagepost/pipeline/jobs/audit.py",
        find="            if not has_lost_checkpoint(error):\n",
        replace="            if True:\n",
        tests=["tests/pipeline/test_audit_while_working.py::test_reads_that_an_executor_took_along_are_made_again"],
    ),
    Mutant(
        promise="the sink imports the app from a zip that was shipped",
        file="stagepost/pipeline/task_plan.py",
        find='PACKED = (".zip", ".egg")',
        replace='PACKED = (".egg",)',
        tests=[f"{TASK_PLAN}::test_code_in_a_zip_that_came_with_the_job_is_imported_also_where_spark_does_not_add_it"],
    ),
    Mutant(
        promise="no argument holds a password",
        file="stagepost/pipeline/spark_options.py",
        find="    if has_password(value):\n",
        replace="    if has_password(name):\n",
        tests=["tests/pipeline/test_spark_options.py::test_a_secret_in_a_setting_is_refused_with_the_places_for_it"],
    ),
    Mutant(
        promise="a bulk run counts each row once",
        file="stagepost/store/sql/statements/count_run.sql",
        find="coalesce(ended_start, starts)",
        replace="starts",
        tests=[f"{ON_SQLITE}::test_only_the_start_that_ended_last_is_summed"],
    ),
    Mutant(
        promise="a bulk run counts each row once",
        file="stagepost/store/sql/statements/count_task.sql",
        find="\nWHERE excluded.attempt >= stagepost_run_task.attempt",
        replace="",
        tests=[f"{ON_SQLITE}::test_a_later_attempt_replaces_the_counts_of_its_task_and_an_earlier_one_does_not"],
    ),
    Mutant(
        promise="a bulk run counts each row once",
        file="stagepost/pipeline/jobs/initiate.py",
        find='verdict.outcome == "conflict" or verdict.run_id != self._plan.run_id or key == self._started',
        replace='verdict.outcome != "started"',
        tests=["tests/pipeline/test_initiate_frames.py::test_a_run_that_goes_on_starts_what_is_left_of_it"],
    ),
    # Apps, and those who start flows
    Mutant(
        promise="an accepted id commits with its message",
        file="stagepost/store/postgres/statements/accept_keys.sql",
        find="SELECT given.place, new.key IS NOT NULL\n"
        "FROM given\n"
        "LEFT JOIN new ON new.scope = given.scope AND new.key = given.key",
        replace="SELECT given.place, old.key IS NULL\n"
        "FROM given\n"
        "LEFT JOIN stagepost_accepted AS old ON old.scope = given.scope AND old.key = given.key",
        tests=[
            "tests/store/test_postgres_sessions.py::test_two_sessions_that_let_the_same_key_in_agree_on_who_was_first"
        ],
    ),
    Mutant(
        promise="an accepted id commits with its message",
        file="stagepost/store/postgres/writer.py",
        find="{key: None for place, key in enumerate(keys, 1) if answers[place] is True}",
        replace="{}",
        tests=[
            (
                f"{CALLERS}::test_whatever_the_caller_has_set_flows_start_once_and_every_one_that_was_accepted_has_its_message"
                "[the driver's defaults-transaction-plain]"
            )
        ],
    ),
    Mutant(
        promise="an accepted id commits with its message",
        file="stagepost/store/postgres/caller.py",
        find="            with connection.transaction(), _in_utf8(writer, connection):\n",
        replace="            with _in_utf8(writer, connection):\n",
        tests=[f"{CALLERS}::test_a_message_that_cannot_be_written_takes_its_acceptance_along[autocommit-plain]"],
    ),
    Mutant(
        promise="a letter leaves the frozen set with the commit that puts its message back",
        file="stagepost/transaction/replaying.py",
        find="        for kept in chunk.letters:\n            queue_commit.revive(",
        replace="        session.commit()\n        session.begin()\n"
        "        for kept in chunk.letters:\n            queue_commit.revive(",
        tests=[
            "tests/transaction/test_replaying.py::test_a_chunk_that_could_not_be_written_is_still_to_be_done[sqlite]"
        ],
    ),
    Mutant(
        promise="starting flows opens the stages' database alone",
        file="stagepost/runtime/databases.py",
        find="        with self._opening_business:\n",
        replace="        self._opened()\n        with self._opening_business:\n",
        tests=[f"{OUTBOX}::test_a_flow_is_started_though_the_queues_database_cannot_be_opened"],
    ),
    Mutant(
        promise="starting flows opens the stages' database alone",
        file="stagepost/runtime/flow_starter.py",
        find="        return (self._databases.business or self._databases.store).session(is_pinned=False)\n",
        replace="        queue = self._databases.store\n"
        "        return (self._databases.business or queue).session(is_pinned=False)\n",
        tests=[f"{OUTBOX}::test_a_flow_is_started_though_the_queues_database_cannot_be_opened"],
    ),
    Mutant(
        promise="a message that waits at the broker is not lost",
        file="stagepost/pipeline/transforms/deliveries.py",
        find='F.col("confirmed_at") + late < F.least(F.col("overtaken_until"), seen_until)',
        replace='F.col("confirmed_at") + late < seen_until',
        tests=[f"{RECONCILED}::test_a_message_is_lost_when_a_later_one_has_overtaken_it_or_it_is_overdue"],
    ),
    Mutant(
        promise="windows are equal only if the same ids left and arrived",
        file="stagepost/pipeline/transforms/deliveries.py",
        find='digest = F.sum(F.when(is_it, F.xxhash64("message_id").cast("decimal(20,0)")))',
        replace='digest = F.bit_xor(F.when(is_it, F.xxhash64("message_id") * 0))',
        tests=[f"{RECONCILED}::test_a_window_is_equal_only_if_the_same_ids_left_and_arrived"],
    ),
    Mutant(
        promise="a group of rows is equal only if its flows and amounts were committed",
        file="stagepost/pipeline/transforms/row_verdicts.py",
        find='(("flow_id",), ("flow_id", "amount"))',
        replace='(("flow_id",), ("flow_id",))',
        tests=("tests/pipeline/test_row_verdicts.py::test_a_bucket_is_equal_only_if_flows_and_amounts_are_the_same",),
    ),
    Mutant(
        promise="a recorded amount commits with its message",
        file="stagepost/flow/run.py",
        find="None if self.amount is None else detail_of_amount(self.amount), self.detail",
        replace="self.detail",
        tests=[f"{AMOUNTS}::test_the_amounts_of_a_run_are_added_up_in_the_line_of_its_commit"],
    ),
    Mutant(
        promise="a message that moves while the audit reads is not lost",
        file="stagepost/pipeline/transforms/losses.py",
        find='return missing.join(journal_head, PLACE_KEY, "left_anti")',
        replace="return missing",
        tests=("tests/pipeline/test_losses_and_doubles.py::test_only_what_is_nowhere_is_lost",),
    ),
    Mutant(
        promise="an audit continues only from the state with which it began",
        file="stagepost/store/sql/statements/move_audit_state.sql",
        find="AND folder = :former_folder AND position = :former_position",
        replace="AND (folder = :former_folder OR position = :former_position OR true)",
        tests=(f"{ON_SQLITE}::test_a_state_that_begins_elsewhere_than_the_named_one_ended_is_not_named",),
    ),
    Mutant(
        promise="an audit reads the newest state if another audit removes the one it reads",
        file="stagepost/cli/audit_series.py",
        find="                if named == turn.former:\n",
        replace="                if True:\n",
        tests=[
            "tests/pipeline/test_audit_turns.py::test_an_audit_reads_the_newest_state_if_another_one_replaces_the_one_it_reads"
        ],
    ),
    Mutant(
        promise="a column that an old state lacks counts as zero",
        file="stagepost/pipeline/jobs/audit_state.py",
        find='self._part(spark, "messages", MESSAGES).fillna(0, MESSAGE_COUNTS)',
        replace='self._part(spark, "messages", MESSAGES)',
        tests=[f"{STATE}::test_an_audit_continues_from_a_state_of_an_earlier_version"],
    ),
    Mutant(
        promise="a column that an old state lacks counts as zero",
        file="stagepost/pipeline/jobs/audit_state.py",
        find='self._part(spark, "facts", FACTS).fillna(0, FACT_COUNTS)',
        replace='self._part(spark, "facts", FACTS)',
        tests=[f"{STATE}::test_an_audit_continues_from_a_state_of_an_earlier_version"],
    ),
    Mutant(
        promise="the lists of findings have a total order",
        file="stagepost/pipeline/transforms/losses.py",
        find="return found.orderBy(F.desc(at), *found.columns)",
        replace="return found.orderBy(F.desc(at))",
        tests=["tests/pipeline/test_losses_and_doubles.py::test_the_listed_findings_are_the_latest_by_stage_and_id"],
    ),
    Mutant(
        promise="the lists of findings have a total order",
        file="stagepost/pipeline/transforms/losses.py",
        find='return found.orderBy("sent_at", *found.columns)',
        replace='return found.orderBy("sent_at")',
        tests=[
            "tests/pipeline/test_losses_and_doubles.py::test_the_listed_stuck_messages_are_the_oldest_by_stage_and_id"
        ],
    ),
    Mutant(
        promise="each dead letter is judged by the messages that began when its own flow did",
        file="stagepost/pipeline/report/letter_verdicts.py",
        find="match evidence.is_bad(stage, minute):",
        replace="match evidence.is_bad(stage, min(letters)):",
        tests=[f"{VERDICTS}::test_a_failure_of_an_outage_that_happens_once_more_elsewhere_is_one"],
    ),
    Mutant(
        promise="each dead letter is judged by the messages that began when its own flow did",
        file="stagepost/pipeline/report/letter_verdicts.py",
        find="            if well + died >= ENDED_MIN:",
        replace="            if distance == HOUR // MINUTE - 1:",
        tests=[f"{VERDICTS}::test_an_outage_in_the_quiet_hours_of_a_busy_day_is_one"],
    ),
    Mutant(
        promise="each dead letter is judged by the messages that began when its own flow did",
        file="stagepost/pipeline/report/letter_verdicts.py",
        find="return None if (stage, hour) in self.partial else True",
        replace="return True",
        tests=[f"{VERDICTS}::test_what_an_audit_has_forgotten_in_part_may_have_ended_well"],
    ),
    Mutant(
        promise="each dead letter is judged by the messages that began when its own flow did",
        file="stagepost/pipeline/transforms/letters.py",
        find="F.count_if(ended & ~died)",
        replace="F.count_if(ended)",
        tests=[f"{VERDICTS}::test_the_evidence_is_the_ended_messages_of_each_minute_in_the_hours_of_deaths"],
    ),
    Mutant(
        promise="an audit forgets a dead message when its letter has left the store, and not before",
        file="stagepost/pipeline/transforms/losses.py",
        find='    return F.col("place").isNull() & is_old\n',
        replace="    return is_old\n",
        tests=[f"{STATE}::test_a_dead_flow_is_forgotten_when_its_letter_has_left_the_store"],
    ),
    Mutant(
        promise="an audit forgets a dead message when its letter has left the store, and not before",
        file="stagepost/pipeline/jobs/audit_search.py",
        find="lost(whereabouts.where(has_left), _head(scope))",
        replace="whereabouts.where(has_left)",
        tests=[f"{STATE}::test_a_dead_flow_is_forgotten_when_its_letter_has_left_the_store"],
    ),
    Mutant(
        promise="growth is measured, or taken from a whole journal, or unknown",
        file="stagepost/pipeline/report/growth.py",
        find="elif store is not None and not store.is_purged and",
        replace="elif store is not None and",
        tests=("tests/pipeline/test_audit_advice.py::test_what_cannot_be_known_is_said_and_not_guessed",),
    ),
    Mutant(
        promise="a state that is named is whole where the next audit reads it",
        file="stagepost/pipeline/jobs/audit_state.py",
        find="    if rows != messages:",
        replace="    if rows is None:",
        tests=(f"{STATE}::test_a_state_of_which_executors_wrote_a_part_elsewhere_is_refused",),
    ),
    Mutant(
        promise="a stage belongs to one app, even if two start at once",
        file="stagepost/runtime/declarations.py",
        find="            session.declarations.lock()\n"
        "            known = session.declarations.listed()\n"
        "            stages = engine.stages()\n",
        replace="            known = session.declarations.listed()\n            stages = engine.stages()\n",
        tests=[
            "tests/liveness/test_declared_stages.py::test_a_start_reads_what_it_decides_by_under_the_lock[postgres]"
        ],
    ),
    Mutant(
        promise="a stage belongs to one app, even if two start at once",
        file="stagepost/runtime/declarations.py",
        find="        with committing(session):\n"
        "            session.declarations.lock()\n"
        "            known = session.declarations.listed()\n"
        "            stages = engine.stages()\n",
        replace="        known = session.declarations.listed()\n"
        "        with committing(session):\n"
        "            session.declarations.lock()\n"
        "            stages = engine.stages()\n",
        tests=["tests/liveness/test_declared_stages.py::test_a_start_reads_what_it_decides_by_under_the_lock[sqlite]"],
    ),
    Mutant(
        promise="a message to another service leaves, and one that arrived never does",
        file="stagepost/transaction/enqueueing.py",
        find="to if to in ours and self._may_stay(each) else f",
        replace="to if to not in ours else f",
        tests=[
            "tests/transaction/test_routing.py::test_a_stage_sends_over_the_broker_what_no_app_of_its_store_declares"
        ],
    ),
    Mutant(
        promise="an intent is on the disk before its call",
        file="stagepost/transaction/effects.py",
        find="        intent = effects.intend(\n",
        replace="        intent = 0 if effect.name else effects.intend(\n",
        tests=["tests/transaction/test_effects.py::test_a_killed_process_leaves_an_effect_once[sqlite-died-called]"],
    ),
    Mutant(
        promise="a result that is known is never called for again",
        file="stagepost/idempotency/effects.py",
        find="if logged.result is not None:",
        replace="if logged.result is not None and logged.unknown == []:",
        tests=["tests/transaction/test_effects.py::test_a_later_attempt_gets_the_known_result[sqlite]"],
    ),
    Mutant(
        promise="only the latest owner of a message calls for it",
        file="stagepost/store/sql/statements/raise_effect_token.sql",
        find=" WHERE stagepost_effect_token.token <= excluded.token",
        replace="",
        tests=["tests/transaction/test_effects.py::test_a_stale_owner_may_not_call[sqlite]"],
    ),
    Mutant(
        promise="a call that another attempt may be making is waited for",
        file="stagepost/idempotency/effects.py",
        find="if not is_over(latest):",
        replace="if not is_over(latest) and can_ask:",
        tests=[
            "tests/transaction/test_effects.py::test_an_attempt_waits_for_the_call_of_another_that_is_under_way[sqlite-False]"
        ],
    ),
    Mutant(
        promise="the outside is asked after the silence alone",
        file="stagepost/idempotency/effects.py",
        find="    if left > 0:\n",
        replace="    if left > 1e9:\n",
        tests=["tests/transaction/test_effects.py::test_a_call_that_raised_is_asked_about_after_the_silence[sqlite]"],
    ),
    Mutant(
        promise="an effect that no commit kept is undone",
        file="stagepost/transaction/settling.py",
        find="                queue_commit.send(self._orders(claim, claim.deliveries + 1))\n",
        replace="",
        tests=[
            "tests/transaction/test_undoing.py::test_a_refused_message_undoes_its_effect_and_a_replay_charges_again[sqlite]"
        ],
    ),
    Mutant(
        promise="an effect that no commit kept is undone",
        file="stagepost/transaction/effects.py",
        find="if self._claim.deliveries == 1 and self._touched <= self._given_now:",
        replace="if self._claim.deliveries == 1:",
        tests=["tests/transaction/test_undoing.py::test_a_caught_failure_undoes_the_effect[sqlite]"],
    ),
    Mutant(
        promise="no call follows the end of its message",
        file="stagepost/transaction/settling.py",
        find="self._orders(claim, claim.deliveries + 1)",
        replace="self._orders(claim, claim.deliveries)",
        tests=["tests/transaction/test_undoing.py::test_a_stale_owner_cannot_call_for_a_message_that_ended[sqlite]"],
    ),
    Mutant(
        promise="a replay calls again exactly what was undone",
        file="stagepost/idempotency/effects.py",
        find="return CallNow(None, logged.generation + 1, is_repeat=False)",
        replace="return CallNow(logged.row, logged.generation, is_repeat=False)",
        tests=[
            "tests/transaction/test_undoing.py::test_a_refused_message_undoes_its_effect_and_a_replay_charges_again[sqlite]"
        ],
    ),
    Mutant(
        promise="a dead letter comes back only after its undo",
        file="stagepost/transaction/replaying.py",
        find="        _check_undone(queue_commit, chunk)\n",
        replace="",
        tests=["tests/transaction/test_undoing.py::test_a_replay_waits_for_the_undo[sqlite]"],
    ),
    Mutant(
        promise="a second file that was restored without the first one, or the first without it, is refused",
        file="stagepost/store/sqlite/second_file.py",
        find="if abs(first.number - second.number) > 1:",
        replace="if abs(first.number - second.number) > 1_000_000:",
        tests=["tests/store/test_second_file.py::test_one_restored_without_the_other_is_refused"],
    ),
    Mutant(
        promise="a stage that can have no effects is refused when it is declared",
        file="stagepost/app/effects.py",
        find='lacks = [f"batch={terms.batch}"] if terms.batch > 1 else []',
        replace="lacks: list[str] = []",
        tests=[
            "tests/app/test_combinations.py::test_a_pair_that_cannot_work_is_refused_with_its_remedy[effect_and_batch]"
        ],
    ),
    Mutant(
        promise="a flow that a stage on SQLite started independently is committed apart from the stage",
        file="stagepost/runtime/flow_starter.py",
        find="verdicts = hold_acceptances(mine, acceptances, now, node)\n            mine.commit()",
        replace="verdicts = hold_acceptances(mine, acceptances, now, node)",
        tests=["tests/transaction/test_starts_apart.py::test_it_waits_until_its_stage_has_ended"],
    ),
    Mutant(
        promise="an independent flow leaves the second file only after the first one has accepted it",
        file="stagepost/transaction/relay.py",
        find="            try:\n                settled = self._dispatch(leased)",
        replace="            self._forget(leased)\n            try:\n                settled = self._dispatch(leased)",
        tests=[
            (
                "tests/faults/test_independent_starts_killed.py::"
                "test_workers_killed_around_each_commit_of_a_move_start_every_flow_once"
            )
        ],
    ),
    Mutant(
        promise="an independent start looks for its id in both files",
        file="stagepost/store/sqlite/second_file.py",
        find="        if found is None:\n            with self._first() as cursor:",
        replace="        if found is None and not key:\n            with self._first() as cursor:",
        tests=[
            (
                "tests/transaction/test_independent_initiations.py::"
                "test_they_start_though_the_stage_fails_and_once_however_often_it_is_tried"
            )
        ],
    ),
    Mutant(
        promise="a message is settled at the broker only after its commit",
        file="stagepost/transaction/receiver.py",
        find="            self._listener(EdgeStep.STORING, ids)\n",
        replace="            connection.settle(deliveries)\n            self._listener(EdgeStep.STORING, ids)\n",
        tests=[
            (
                "tests/edges/test_receiving.py::"
                "test_a_receiver_that_dies_at_a_step_neither_loses_nor_doubles_a_message[storing]"
            )
        ],
    ),
    Mutant(
        promise="a message of a broker enters the store once",
        file="stagepost/transaction/receiver.py",
        find='if verdict.outcome == "repeated":',
        replace='if verdict.outcome == "never":',
        tests=["tests/edges/test_receiving.py::test_a_copy_starts_nothing"],
    ),
    Mutant(
        promise="of a direct run and a stored copy one commits",
        file="stagepost/transaction/direct.py",
        find='if verdict.outcome != "started":',
        replace='if verdict.outcome == "conflict":',
        tests=[
            f"{DIRECT}::test_a_run_that_lost_its_delivery_cannot_commit_beside_the_stored_copy[sqlite-confirms]",
        ],
    ),
    Mutant(
        promise="a run whose messages may not have left runs again",
        file="stagepost/transaction/direct.py",
        find="self._commit.admit(claim, is_direct=True)",
        replace="self._commit.admit(claim, is_direct=False)",
        tests=[
            f"{DIRECT}::test_best_effort_killed_at_a_step_does_its_work_at_least_once[sqlite-atomic-committed]",
        ],
    ),
    Mutant(
        promise="a repeated start sends what its first attempt may not have sent",
        file="stagepost/transaction/direct_start.py",
        find="replace(each, is_direct=True)",
        replace="replace(each, is_direct=False)",
        tests=["tests/edges/test_starting_directly.py::test_a_kill_between_the_commits_is_cured_by_the_same_ids"],
    ),
    Mutant(
        promise="a delivery is settled only after the broker has what its run sent",
        file="stagepost/transaction/direct.py",
        find="""        if self._publications:
            results = self._exchange(self._publications)""",
        replace="""        self._settle(claim)
        if self._publications:
            results = self._exchange(self._publications)""",
        tests=[
            f"{DIRECT}::test_best_effort_killed_at_a_step_does_its_work_at_least_once[sqlite-confirms-settled]",
        ],
    ),
    Mutant(
        promise="a direct stage sends over the broker, also from a stored copy",
        file="stagepost/transaction/enqueueing.py",
        find="return self._is_local and outgoing.envelope.sender not in self._direct",
        replace="return self._is_local",
        tests=[f"{DIRECT}::test_a_stored_copy_sends_over_the_broker_as_the_first_run_did[sqlite-confirms-best_effort]"],
    ),
    Mutant(
        promise="a stamp is on the disk before a message leaves",
        file="stagepost/transaction/dispatcher.py",
        find="            self._session.edge.stamp(claims, now)\n",
        replace="",
        tests=["tests/edges/test_dispatching.py::test_a_row_that_left_long_ago_is_not_published_again"],
    ),
    Mutant(
        promise="answers of the broker count against the destination",
        file="stagepost/transaction/dispatcher.py",
        find='elif result == "lost" and len(answers) == 1:',
        replace='elif result in ("lost", "unconfirmed") and len(answers) == 1:',
        tests=[
            (
                "tests/edges/test_dispatching.py::"
                "test_a_missing_confirm_pauses_its_destination_and_counts_against_no_message"
            )
        ],
    ),
    Mutant(
        promise="receiving stops while outbound rows pile up",
        file="stagepost/runtime/back_pressure.py",
        find="(each.takes_replies_alone or not is_backed_up)",
        replace="(each.takes_replies_alone or True)",
        tests=[
            (
                "tests/edges/test_back_pressure.py::"
                "test_due_outbound_rows_stop_all_but_replies_while_the_broker_takes_publications"
            )
        ],
    ),
    Mutant(
        promise="a paused stage that has no message receives one, and the store probes with it",
        file="stagepost/runtime/back_pressure.py",
        find="if (stage in paused and stage not in empty) or",
        replace="if stage in paused or",
        tests=[
            "tests/edges/test_back_pressure.py::test_a_paused_stage_without_a_message_receives_one_to_probe_it",
        ],
    ),
    Mutant(
        promise="a paused stage that has no message receives one, and the store probes with it",
        file="stagepost/runtime/direct.py",
        find=" if each not in pressure.probing}",
        replace="}",
        tests=["tests/edges/test_direct_probes.py"],
    ),
    Mutant(
        promise="a message that the store refuses is settled only after the broker has confirmed its copy",
        file="stagepost/runtime/dead_publisher.py",
        find='        return result == "confirmed"\n',
        replace="        return True\n",
        tests=["tests/edges/test_dead_publisher.py::test_a_message_that_the_broker_refuses_is_not_settled"],
    ),
    Mutant(
        promise="a message that the store refuses is settled only after the broker has confirmed its copy",
        file="stagepost/transaction/receiver.py",
        find="            self._try_later(delivery)\n            return False\n",
        replace="            return True\n",
        tests=[
            "tests/edges/test_receiving.py::test_a_message_whose_dead_letter_is_refused_goes_to_a_queue_of_the_broker",
        ],
    ),
    Mutant(
        promise="a service without Stagepost gets the body and the ids, and every other one the envelope",
        file="stagepost/transaction/publication.py",
        find="if envelope is None or not envelope.is_bare:",
        replace="if envelope is None:",
        tests=["tests/edges/test_dispatching.py::test_a_service_without_an_envelope_gets_the_body_and_the_ids"],
    ),
    Mutant(
        promise="a service without Stagepost gets the body and the ids, and every other one the envelope",
        file="stagepost/transaction/publication.py",
        find="        headers[CAUSE_HEADER] = envelope.cause_id\n",
        replace="        pass\n",
        tests=["tests/edges/test_dispatching.py::test_a_stage_sends_a_body_without_its_envelope"],
    ),
    Mutant(
        promise="the doctor names settings of a broker that lose messages, and what it did not check",
        file="stagepost/broker/rabbitmq/examination.py",
        find='LOSING = ("message-ttl", "expires")',
        replace='LOSING = ("message-ttl",)',
        tests=[f"{BROKER_DOCTOR}::test_rabbitmq_with_its_management_api"],
    ),
    Mutant(
        promise="the doctor names settings of a broker that lose messages, and what it did not check",
        file="stagepost/broker/rabbitmq/examination.py",
        find="        if not self._unchecked:\n            return []\n",
        replace="        return []\n",
        tests=[f"{BROKER_DOCTOR}::test_rabbitmq_without_its_management_api"],
    ),
    Mutant(
        promise="the doctor names settings of a broker that lose messages, and what it did not check",
        file="stagepost/broker/activemq/examination.py",
        find="grade = critical if any(each.effect == LOSES for each in faults) else warning",
        replace="grade = warning",
        tests=[f"{BROKER_DOCTOR}::test_activemq_names_the_settings_of_its_file"],
    ),
    # The gateway
    Mutant(
        promise="a message is committed before its request is answered",
        file="stagepost/runtime/flow_starter.py",
        find="            mine.commit()\n            return verdicts\n\n    def look_up",
        replace="            return verdicts\n\n    def look_up",
        tests=[f"{ACCEPTING}::test_a_message_is_stored_before_the_answer_and_handled_once[sqlite]"],
    ),
    Mutant(
        promise="a request that ran out of time is told whether its commit has begun",
        file="stagepost/gateway/group_commit.py",
        find="            self._waiting.remove(request)\n",
        replace="",
        tests=[
            "tests/gateway/test_gateway_outages.py::test_a_request_whose_time_is_over_before_its_commit_begins_is_dropped"
        ],
    ),
    Mutant(
        promise="a request that ran out of time is told whether its commit has begun",
        file="stagepost/gateway/group_commit.py",
        find="                return False\n            self._waiting",
        replace="                return True\n            self._waiting",
        tests=[
            "tests/gateway/test_gateway_outages.py::test_a_request_whose_time_is_over_before_its_commit_begins_is_dropped"
        ],
    ),
    Mutant(
        promise="a message that was accepted is never refused later",
        file="stagepost/gateway/acceptor.py",
        find="if problem.is_about_the_message]",
        replace="if False]",
        tests=[f"{ACCEPTING}::test_an_accepted_message_is_a_duplicate_for_a_stricter_schema_too[sqlite]"],
    ),
    Mutant(
        promise="a message that was accepted is never refused later",
        file="stagepost/gateway/problems.py",
        find="(*REJECTION_STATUSES, 409, 413)",
        replace="(*REJECTION_STATUSES, 409)",
        tests=[f"{ACCEPTING}::test_an_accepted_message_is_a_duplicate_for_a_lower_limit_of_its_size_too[sqlite]"],
    ),
    Mutant(
        promise="a message that was accepted is never refused later",
        file="stagepost/gateway/messages.py",
        find="body.digest, beyond, attributes)",
        replace="digest_of_unparsable(data), beyond, attributes)",
        tests=[f"{ACCEPTING}::test_an_accepted_message_is_a_duplicate_for_a_lower_limit_of_its_depth_too"],
    ),
    Mutant(
        promise="a body that ends with its connection is no message",
        file="stagepost/gateway/requests.py",
        find="            raise Disconnected\n",
        replace="            break\n",
        tests=[f"{HOSTILE}::test_a_client_that_leaves_in_mid_body_stores_nothing_and_gets_nothing"],
    ),
    Mutant(
        promise="no request leaves HTTP/1.1",
        file="stagepost/gateway/http1.py",
        find='if each[0] != b"upgrade"]',
        replace="]",
        tests=[f"{RAW_BYTES}::test_no_request_switches_to_another_protocol[h2c]"],
    ),
    Mutant(
        promise="a line of a head ends as HTTP says",
        file="stagepost/gateway/http1.py",
        find="        if self.their_state is h11.IDLE:\n",
        replace="        if False:\n",
        tests=[f"{RAW_BYTES}::test_an_ambiguous_request_is_refused_and_ends_its_connection[header-behind-bare-lf]"],
    ),
    Mutant(
        promise="a new connection takes the place of one without a request",
        file="stagepost/gateway/connections.py",
        find="        end()\n        return None\n",
        replace="        return None\n",
        tests=[
            (
                f"{OPEN_CONNECTIONS}::"
                "test_a_connection_beyond_the_limit_takes_the_place_of_the_one_that_waits_longest_for_a_request"
            )
        ],
    ),
    Mutant(
        promise="a client that leaves gives its place back",
        file="stagepost/gateway/connections.py",
        find="                await self.idle_task.stop()\n",
        replace="",
        tests=[f"{OPEN_CONNECTIONS}::test_a_client_that_leaves_gives_its_place_back_at_once[between requests]"],
    ),
    Mutant(
        promise="a client that leaves gives its place back",
        file="stagepost/gateway/connections.py",
        find="                self._is_read = True\n",
        replace="",
        tests=[f"{OPEN_CONNECTIONS}::test_a_client_that_leaves_gives_its_place_back_at_once[during its request]"],
    ),
    Mutant(
        promise="an answer before the end of a body ends its connection",
        file="stagepost/gateway/http1.py",
        find="                queue.get_nowait()\n",
        replace="                break\n",
        tests=[f"{OPEN_CONNECTIONS}::test_an_answer_before_the_end_of_a_body_ends_its_connection"],
    ),
    Mutant(
        promise="bytes behind the last request of a connection change no answer",
        file="stagepost/gateway/http1.py",
        find="may be accepted by then.\n            return h11.NEED_DATA\n",
        replace="may be accepted by then.\n            pass\n",
        tests=[
            f"{RAW_BYTES}::test_bytes_behind_the_last_request_of_a_connection_do_not_change_its_answer[1.1-request]"
        ],
    ),
    # The connection to RabbitMQ
    Mutant(
        promise="an acknowledgement to a broker takes no other delivery along",
        file="stagepost/broker/rabbitmq/connection.py",
        find="together = self._prefix(tags)",
        replace="together = len(tags)",
        tests=[f"{ON_RABBITMQ}::test_each_delivery_is_settled_by_itself"],
    ),
    Mutant(
        promise="a token settles on its own connection alone",
        file="stagepost/broker/rabbitmq/connection.py",
        find=" and each.connection == id(self)",
        replace="",
        tests=[f"{ON_RABBITMQ}::test_a_delivery_of_another_connection_is_refused"],
    ),
    Mutant(
        promise="a new queue waits until a kill loses nothing",
        file="stagepost/broker/rabbitmq/topology.py",
        find="YOUNG_SECONDS = 2.0",
        replace="YOUNG_SECONDS = 0.0",
        tests=["tests/contract/test_rabbitmq.py::test_a_queue_that_was_created_is_used_only_when_it_is_old_enough"],
    ),
    Mutant(
        promise="a publication that no queue takes is returned",
        file="stagepost/broker/rabbitmq/publisher.py",
        find="MANDATORY = True",
        replace="MANDATORY = False",
        tests=[f"{ON_RABBITMQ}::test_answers_come_in_the_order_of_the_publications"],
    ),
    # Deliveries
    Mutant(
        promise="a delivery has its stamp on the disk before the first byte leaves",
        file="stagepost/transaction/departures.py",
        find="        session.edge.stamp([claim], queue_commit.clock.now())\n    return left_at",
        replace="        pass\n    return left_at",
        tests=[f"{DELIVERIES}/test_answers.py::test_the_stamp_is_on_the_disk_before_the_first_byte_leaves[sqlite]"],
    ),
    Mutant(
        promise="a refusal is reported in the commit that buries it",
        file="stagepost/transaction/settling.py",
        find="                if report is not None:\n",
        replace="                if False:\n",
        tests=[f"{DELIVERIES}/test_answers.py::test_a_refusal_and_its_report_are_one_commit[sqlite-committed-1]"],
    ),
    Mutant(
        promise="the checked address is the one connected to",
        file="stagepost/gateway/out/addresses.py",
        find="for address in self._checked(host, port):",
        replace="for address in (self._checked(host, port) and self._resolve(host, port)):",
        tests=[f"{DELIVERIES}/test_addresses.py::test_the_checked_address_is_the_one_that_is_connected_to"],
    ),
    Mutant(
        promise="a consumer's id commits with its work, and its answer leaves afterwards",
        file="stagepost/gateway/receiver/received.py",
        find="        if cursor.rowcount:\n",
        replace="        connection.commit()\n        if cursor.rowcount:\n",
        tests=["tests/receiver/test_receive.py::test_a_message_is_new_until_its_work_is_committed[sqlite]"],
    ),
    Mutant(
        promise="a copy of a handled message gets the consumer's answer again under each limit",
        file="stagepost/gateway/receiver/delivery.py",
        find="if received.is_new:\n            if self._body.is_too_long:",
        replace="if received.is_new or self._body.is_too_long:\n            if self._body.is_too_long:",
        tests=[
            "tests/receiver/test_middleware.py::test_a_handled_message_gets_its_answer_under_a_lower_limit[sqlite-asgi]"
        ],
    ),
    Mutant(
        promise="a slow route takes no thread of another",
        file="stagepost/worker/process.py",
        find="if each.threads is None}",
        replace="if True}",
        tests=[
            f"{WORKERS}::test_a_slow_consumer_takes_no_thread_of_another_route_or_stage[sqlite]",
        ],
    ),
    # The user's session
    Mutant(
        promise="a run that made a session, or called an effect, is handled again after a refused commit",
        file="stagepost/transaction/unit_of_work.py",
        find="used = self.is_handlers or self.has_user_session or self.has_document",
        replace="used = self.has_document",
        tests=[f"{SESSIONS}::{AGAIN}[sqlite-wrote]"],
    ),
    Mutant(
        promise="a run that made a session, or called an effect, is handled again after a refused commit",
        file="stagepost/transaction/unit_of_work.py",
        find="self.has_user_session or ",
        replace="",
        tests=[f"{SESSIONS}::{AGAIN}[sqlite-made it alone]"],
    ),
    Mutant(
        promise="a run that made a session, or called an effect, is handled again after a refused commit",
        file="stagepost/transaction/unit_of_work.py",
        find=" or (self.effects is not None and self.effects.were_called)",
        replace="",
        tests=[
            (
                "tests/transaction/test_effects.py::"
                "test_a_run_that_called_an_effect_alone_is_handled_again_after_a_refused_commit[sqlite]"
            )
        ],
    ),
    Mutant(
        promise="a failed flush fails the attempt, even if its handler caught the error",
        file="stagepost/integrations/sqlalchemy.py",
        find="raise self.handle.failed_flush",
        replace="return",
        tests=[f"{SESSIONS}::test_a_failed_flush_fails_the_attempt_even_if_the_handler_caught_its_error[sqlite]"],
    ),
    Mutant(
        promise="no way of the user's session ends the transaction",
        file="stagepost/integrations/sqlalchemy.py",
        find="        if not self.may_roll_back:\n            self.refuse",
        replace="        if False:\n            self.refuse",
        tests=[f"{SESSIONS}::test_ending_the_transaction_is_refused_with_the_reason[sqlite-raised-core rollback]"],
    ),
    Mutant(
        promise="a flow that joins a caller's session commits with it",
        file="stagepost/integrations/sqlalchemy.py",
        find="if not connection.in_transaction():",
        replace="if False:",
        tests=[f"{JOINED_SESSIONS}::test_a_core_connection_is_joined_too[sqlite]"],
    ),
    # Tests of users
    Mutant(
        promise="an app that a test runs reaches no database of the settings",
        file="stagepost/runtime/databases.py",
        find="            self._is_placed = True\n",
        replace="",
        tests=["tests/testing/test_running_apps.py::test_settings_of_the_machine_do_not_count_in_the_block"],
    ),
    Mutant(
        promise="`drain` shows the dead letters that a test did not expect",
        file="stagepost/testing/running.py",
        find="        if unexpected:\n",
        replace="        if unexpected and is_over:\n",
        tests=["tests/testing/test_running_apps.py::test_dead_letters_of_the_other_apps_fail_the_drain_too"],
    ),
    Mutant(
        promise="a crash that doubles an effect is reported with its cause",
        file="stagepost/testing/effects.py",
        find="for key in doubled",
        replace="for key in doubled[:0]",
        tests=["tests/testing/test_verdicts.py"],
    ),
    Mutant(
        promise="starting a flow and waiting for its reply never block an event loop",
        file="stagepost/app/app.py",
        find="return await asyncio.to_thread(lambda: self.start(target, message, **options))",
        replace="return self.start(target, message, **options)",
        tests=[f"{AWAITING}::test_the_loop_goes_on_while_the_database_keeps_a_start_waiting[sqlite]"],
    ),
    Mutant(
        promise="a cancelled wait takes no reply",
        file="stagepost/edge/reply_future.py",
        find='self.end("was given up by its caller, whose task was cancelled")',
        replace="pass",
        tests=[f"{AWAITING}::test_a_future_whose_wait_was_cancelled_says_so[sqlite]"],
    ),
    # Documents
    Mutant(
        promise="the next owner of a message fences its document before it looks for the id",
        file="stagepost/transaction/documents.py",
        find="        if place.rule.store.write(place.key, stored.body, stored.version):\n            return stored\n",
        replace="        return stored\n",
        tests=[f"{DOCUMENTS}::test_a_buried_message_was_fenced_so_a_paused_owner_writes_nothing_after_it[memory]"],
    ),
    Mutant(
        promise="an attempt reads its document before it checks that it owns its message",
        file="stagepost/transaction/documents.py",
        find="            check_owner(self.session, claim)\n            value, ids",
        replace="            value, ids",
        tests=[f"{DOCUMENTS}::test_an_owner_that_reads_the_document_after_the_id_has_left_it_changes_nothing[memory]"],
    ),
    Mutant(
        promise="the list of messages is kept before the document is written",
        file="stagepost/transaction/documents.py",
        find="        if not place.rule.store.keep(place.key, place.list_name, content):\n",
        replace="        if False:\n",
        tests=[f"{DOCUMENTS}::test_the_next_owner_finishes_what_a_dead_one_began[memory-written]"],
    ),
    Mutant(
        promise="a fencer drops no list of a later attempt",
        file="stagepost/transaction/documents.py",
        find="if entry == place.entry and int(token) <= claim.deliveries:",
        replace="if entry == place.entry:",
        tests=[f"{DOCUMENTS}::test_a_fencer_that_stood_still_leaves_the_list_of_its_successor[memory]"],
    ),
    Mutant(
        promise="an id stays in its document while its message may come again",
        file="stagepost/transaction/documents.py",
        find="            needed[entry] = (token, flow_id)\n",
        replace="            pass\n",
        tests=[f"{DOCUMENTS}::test_a_document_that_is_full_of_ids_still_needed_puts_the_message_off_uncounted[memory]"],
    ),
    Mutant(
        promise="a message with a document ends as a dead letter only after a fence",
        file="stagepost/transaction/settling.py",
        find="if isinstance(outcome, Buried) and stage is not None:",
        replace="if False:",
        tests=[f"{DOCUMENTS}::test_a_takeover_sends_the_list_of_an_attempt_that_wrote_the_document[memory]"],
    ),
    Mutant(
        promise="validators run whenever bytes become values",
        file="stagepost/integrations/pydantic.py",
        find="_validated(lambda: _adapter(declared).validate_json(data))",
        replace="declared.model_construct(**msgspec.json.decode(data))",
        tests=[f"{TYPES}::test_a_message_that_a_validator_refuses_is_a_dead_letter_at_once"],
    ),
    Mutant(
        promise="equal values have equal bytes, sets of pydantic included",
        file="stagepost/integrations/pydantic.py",
        find='return sorted(dumped, key=lambda each: msgspec.json.encode(each, order="sorted"))',
        replace="return dumped",
        tests=[f"{TYPES}::test_bytes_do_not_depend_on_the_order_of_sets"],
    ),
    Mutant(
        promise="Django's ORM works in the stage's transaction, and nowhere else",
        file="stagepost/integrations/django.py",
        find="        connections[alias] = handle\n",
        replace="",
        tests=[f"{DJANGO}::test_a_failed_handler_leaves_nothing[sqlite]"],
    ),
    Mutant(
        promise="Django's broken block fails the attempt",
        file="stagepost/integrations/django.py",
        find="self.handle.validate_no_broken_transaction()",
        replace="pass",
        tests=[f"{DJANGO}::test_a_caught_error_that_no_savepoint_undid_fails_the_attempt[sqlite]"],
    ),
)

# Tells where a module comes from.
# A folder of SQL files has no file of its own.
WHERE = (
    "import importlib, sys; module = importlib.import_module(sys.argv[1]); "
    "print(module.__file__ or list(module.__path__)[0])"
)


@dataclass(frozen=True)
class Report:
    """The counts of one pytest run. ``output`` is what pytest printed."""

    tests: int
    failures: int
    errors: int
    skipped: int
    output: str

    @property
    def failed(self) -> list[str]:
        """The lines of pytest's summary, each with a test and its reason."""
        return [line for line in self.output.splitlines() if line.startswith("FAILED ")]

    @property
    def is_clean(self) -> bool:
        return self.tests > 0 and not self.failures and not self.errors and not self.skipped


class CannotRunError(Exception):
    """The tests of a mutant did not run. The text says why."""


def mutated(text: str, mutant: Mutant) -> str:
    """Return the text with the mutant's edit. Raises ``ValueError`` unless ``find`` occurs exactly once."""
    if text.count(mutant.find) != 1:
        raise ValueError(f"{mutant.file} has {text.count(mutant.find)} times what the mutant replaces: {mutant.find!r}")
    return text.replace(mutant.find, mutant.replace)


@contextmanager
def copied_source(mutant: Mutant | None = None) -> Iterator[Path]:
    """Copy ``src/`` to a temporary folder, and apply the mutant there."""
    with tempfile.TemporaryDirectory(prefix="stagepost-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy)
        if mutant is not None:
            file = copy / mutant.file
            file.write_text(mutated(file.read_text(encoding="utf-8"), mutant), encoding="utf-8")
        yield copy


def check_import(copy: Path, mutant: Mutant) -> None:
    """Import the mutated module, or the package of a mutated statement. Raises ``CannotRunError``."""
    file = Path(mutant.file)
    module = ".".join((file.with_suffix("") if file.suffix == ".py" else file.parent).parts)
    done = subprocess.run(
        [sys.executable, "-c", WHERE, module],
        cwd=ROOT,
        env=environment(copy),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotRunError(f"{module} cannot be imported:\n{done.stderr}")
    if not Path(done.stdout.strip()).is_relative_to(copy):
        raise CannotRunError(f"{module} was imported from {done.stdout.strip()}, and not from the copy {copy}")


def environment(copy: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(copy)}


def run_tests(copy: Path, tests: Sequence[str]) -> Report:
    """Run these tests on the copy. Raises ``CannotRunError`` where pytest ends before its first test."""
    with tempfile.TemporaryDirectory(prefix="stagepost-mutant-report-") as folder:
        file = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", f"--junit-xml={file}"]
        command += [f"--timeout={TEST_SECONDS_MAX}", *tests]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment(copy),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=RUN_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotRunError(f"pytest did not end within {RUN_SECONDS_MAX} s") from None
        # 0: all tests passed; 1: some did not. All else says that pytest could not collect or run them.
        if done.returncode not in (0, 1):
            raise CannotRunError(done.stdout)
        (suite,) = ET.parse(file).getroot().iter("testsuite")
        counted = {name: int(suite.attrib[name]) for name in COUNTS}
        return Report(**counted, output=done.stdout)


def try_out(mutant: Mutant) -> Report:
    """Run the mutant's tests on the mutated source. Raises ``CannotRunError``, also where a fixture alone fails."""
    with copied_source(mutant) as copy:
        check_import(copy, mutant)
        report = run_tests(copy, mutant.tests)
    if not report.failures and report.errors:
        raise CannotRunError(f"no test failed, and a fixture did:\n{report.output}")
    return report


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is what the command is for


def main() -> int:
    words = " ".join(sys.argv[1:])
    chosen = [each for each in MUTANTS if words in each.promise]
    if not chosen:
        say(f"no promise has the words {words!r}")
        return 2
    with copied_source() as copy:
        report = run_tests(copy, sorted({test for each in chosen for test in each.tests}))
    if not report.is_clean:
        say(f"{report.output}\nthe tests must all pass without a mutant, and none may be skipped")
        return 2
    say(f"{report.tests} tests pass without a mutant")
    survivors = 0
    for mutant in chosen:
        begin = time.monotonic()
        try:
            failed = try_out(mutant).failed
            verdict = "caught" if failed else "SURVIVED"
        except CannotRunError as error:
            failed, verdict = [], f"NO MUTANT: {error}\n"
        survivors += not failed
        say(f"{verdict} in {time.monotonic() - begin:.0f} s: {mutant.promise} ({mutant.file})")
        for line in failed:
            say(f"    {line[:LINE_MAX]}")
    say(f"{len(chosen) - survivors} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
