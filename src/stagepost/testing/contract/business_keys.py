"""Contract of ``ports.business_keys.BusinessKeys``."""

from __future__ import annotations

from stagepost.ports.business_keys import HandledKey, KeyRow
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import LONG_ID, NOW, Given, committed, rolled_back

ROW = KeyRow("pay", '["Order","a","1"]', "m1", "digest", NOW, None)


class BusinessKeysContract(Given):
    def test_a_key_is_admitted_once_by_each_stage(self, session: Session) -> None:
        with committed(session):
            assert session.business_keys.admit(ROW)
            assert not session.business_keys.admit(ROW._replace(message_id="m2"))
            assert session.business_keys.admit(ROW._replace(stage="ship"))
            assert session.business_keys.admit(ROW._replace(key=LONG_ID))
        with committed(session):
            assert not session.business_keys.admit(ROW._replace(message_id="m2", digest="other"))
        assert session.business_keys.find("pay", ROW.key) == HandledKey("m1", "digest", None)
        assert session.business_keys.find("pay", "unknown") is None

    def test_a_key_that_was_rolled_back_is_new(self, session: Session) -> None:
        with rolled_back(session):
            session.business_keys.admit(ROW)
        assert session.business_keys.find("pay", ROW.key) is None
        with committed(session):
            assert session.business_keys.admit(ROW)

    def test_a_reply_comes_with_the_key_or_later(self, session: Session) -> None:
        with committed(session):
            session.business_keys.admit(ROW._replace(reply=b"\x00\xff"))
            session.business_keys.admit(ROW._replace(stage="ship"))
            session.business_keys.keep("ship", ROW.key, b"later")
        assert session.business_keys.find("pay", ROW.key) == HandledKey("m1", "digest", b"\x00\xff")
        assert session.business_keys.find("ship", ROW.key) == HandledKey("m1", "digest", b"later")
