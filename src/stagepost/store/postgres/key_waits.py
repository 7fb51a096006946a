"""Limit how long a statement waits for a key of ``accepted`` that another open transaction has inserted."""

from __future__ import annotations

from stagepost.store.postgres.statements import Statement

# A key that another open transaction has inserted is waited for, with a limit. A connection that has a limit keeps
# its own.
WAIT_FOR_KEYS = Statement(
    b"SELECT set_config('stagepost.lock_timeout', current_setting('lock_timeout'), true), "
    b"set_config('lock_timeout', CASE current_setting('lock_timeout') WHEN '0' THEN '30s' "
    b"ELSE current_setting('lock_timeout') END, true)",
    (),
)
# A receiver waits for the copy that another receiver stores, and has other messages to store meanwhile.
WAIT_A_MOMENT_FOR_KEYS = Statement(
    b"SELECT set_config('stagepost.lock_timeout', current_setting('lock_timeout'), true), "
    b"set_config('lock_timeout', '2s', true)",
    (),
)
WAIT_AS_BEFORE = Statement(
    b"SELECT set_config('lock_timeout', current_setting('stagepost.lock_timeout'), true)",
    (),
)
