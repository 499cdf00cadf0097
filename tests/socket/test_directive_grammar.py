"""The fault header's grammar, case by case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reference_model.contract import CHAT, ENDPOINTS, MODES
from tests.support.deaths import first_answer
from tests.support.rawclient import ask, fault_request

if TYPE_CHECKING:
    from tests.support.server import Server

ACCEPTED = (
    "reset",
    "\treset ",
    "reset;after_chunks=0",
    "reset;after_chunks=4294967295;delay_ms=18446744073709551615",
    "reset;delay_ms=1;after_chunks=2",
    "reset ; after_chunks = 2 ;\tdelay_ms\t=\t0",
    "reset;after_chunks=0000000000000000000000000000003",
    "cut_mid_frame;utf8=true",
    "cut_mid_frame;utf8=false",
    "cut_mid_frame; utf8 = true ;after_chunks=7",
    'reset;close="fin"',
    'ok;after_chunks="all"',
    'cut_mid_frame;tear="byte:7"',
    'cut_mid_frame;utf8="true"',
    'ok;finish="none"',
)
REFUSED = (
    ("", ""),
    (";", ""),
    ("reset;", ""),
    (";reset", ""),
    ("reset;;delay_ms=1", ""),
    ("Reset", "Reset"),
    ("rest", "rest"),
    ("okay", "okay"),
    ("reset,", "no mode"),
    (",reset", "no mode"),
    ("reset after_chunks=3", ""),
    ("after_chunks=3", ""),
    ("after_chunks=3;reset", ""),
    ("reset;AFTER_CHUNKS=3", "AFTER_CHUNKS"),
    ("reset;after_chunk=3", "after_chunk"),
    ("reset;tear=third", "tear"),
    ("reset;after_chunks", "after_chunks"),
    ("reset;after_chunks=", "after_chunks"),
    ("reset;=3", ""),
    ("reset;after_chunks=3;after_chunks=3", "after_chunks"),
    ("reset;after_chunks=+1", "after_chunks"),
    ("reset;after_chunks=-1", "after_chunks"),
    ("reset;after_chunks=1_000", "after_chunks"),
    ("reset;after_chunks=1 0", "after_chunks"),
    ("reset;after_chunks=3.0", "after_chunks"),
    ("reset;after_chunks=0x3", "after_chunks"),
    ("reset;after_chunks=every", "after_chunks"),
    ("reset;after_chunks=4294967296", "after_chunks"),
    ("reset;delay_ms=18446744073709551616", "delay_ms"),
    ("reset;delay_ms=" + "9" * 5000, "delay_ms"),
    ("reset;after_chunks=\xb2", "after_chunks"),
    ("reset;after_chunks=3\xa0", "after_chunks"),
    ("reset\xa0", ""),
    ("reset\x0b;after_chunks=3", ""),
    ("reset;name=\xff", "not UTF-8"),
    ("ok;content_type=text/\xc3\xa9", "content_type"),
    ("reset;utf8=true", "utf8"),
    ("reset;utf8=false", "utf8"),
    ("cut_mid_frame;utf8=True", "utf8"),
    ("cut_mid_frame;utf8=1", "utf8"),
    ("cut_mid_frame;utf8", "utf8"),
    ("cut_mid_frame;utf8=true;utf8=true", "utf8"),
    ('reset;after_chunks="3"', "after_chunks"),
)
NONSENSE = (
    ("ok;pause_ms=1", "pause_ms needs then=rest"),
    ("reset,ok,stall", "element 1"),
    ("reset;after_chunks=0, stall", "element 0"),
)


@pytest.mark.parametrize("header", ACCEPTED)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_well_formed_directive_is_accepted(server: Server, endpoint: str, header: str) -> None:
    assert first_answer(server, fault_request(endpoint, header)).status == 200


@pytest.mark.parametrize(("header", "names"), REFUSED)
def test_a_malformed_directive_is_refused_by_name_with_the_list_of_modes(
    server: Server, header: str, names: str
) -> None:
    got = ask(server.address, fault_request(CHAT, header))
    assert (got.status, got.error["code"]) == (400, "invalid_fault_directive")
    message = got.error["message"]
    assert not [mode for mode in MODES if mode not in message]
    assert names in message
    assert len(message) < 2000, "a long value is not echoed whole"
    assert ("; valid modes: " if "unknown mode" in message else "; basic modes: ") in message
    assert ("slow_but_alive" in message) == ("unknown mode" in message)


@pytest.mark.parametrize(("header", "reason"), NONSENSE)
def test_a_directive_that_makes_no_sense_is_refused_with_the_reason_alone(
    server: Server, header: str, reason: str
) -> None:
    got = ask(server.address, fault_request(CHAT, header))
    assert (got.status, got.error["code"]) == (400, "invalid_fault_directive")
    assert reason in got.error["message"]
    assert len(got.error["message"]) < 200


def test_a_directive_that_is_utf8_is_refused_in_json(server: Server) -> None:
    got = ask(server.address, fault_request(CHAT, "reset;after_chunks=٣".encode().decode("latin-1")))
    assert (got.status, got.error["code"]) == (400, "invalid_fault_directive")
