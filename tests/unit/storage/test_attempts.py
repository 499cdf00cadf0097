"""Attempts: an element with `times` is for so many requests of a test and prompt, then the next stands in its place."""

from __future__ import annotations

import re
from itertools import count
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.core.answer.resume_point import locate
from inference_lab.core.answer.templates import LAB
from inference_lab.core.faults.directive import DirectiveError
from inference_lab.core.faults.plan import plan_from_header, plan_from_prompt, plan_from_table
from inference_lab.core.stream.preview import preview
from inference_lab.storage.attempts import Attempts, AttemptsError, prepare
from tests.support.lab import MODEL, MemoryLab, files, write
from tests.support.rawclient import request
from tests.support.resuming import COMPLETIONS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rawclient import Received

FAULT, TEST = "x-inference-lab-fault", "x-test-id"
RETRIED = "ok;status=429;times=1, cut_between_frames;after_chunks=5;delay_ms=0, ok"
_names = count()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> MemoryLab:
    """A server for many conversations."""
    return MemoryLab(write(tmp_path_factory.mktemp("shared"), files()))


class Conversation:
    """A prompt of its own, asked for at any place of its answer."""

    def __init__(self, lab: MemoryLab, text: str = "") -> None:
        self._lab = lab
        self.prompt = f"<|user|>{text}{next(_names)}<|end|><|assistant|>"
        self.position = locate(LAB, self.prompt)

    def ask(self, progress: int = 0, *, model: str = "lab", stream: bool = True, **headers: str) -> Received:
        tag = self.position.tag
        words = "".join(f"{' ' if i else ''}{tag}{i:04}{'é' if i % 8 == 7 else ''}" for i in range(progress))
        body = {"model": model, "prompt": self.prompt + words, "stream": stream}
        return self._lab.exchange(
            COMPLETIONS, body, {name.replace("_", "-"): text for name, text in headers.items()}
        )

    def outcomes(
        self, fault: str | None, *progress: int, test: str | None = None, model: str = "lab"
    ) -> list[str]:
        """What each request in turn meets: a status, or how many words and whether the answer is whole."""
        headers = {} if fault is None else {"x_inference_lab_fault": fault}
        headers |= {} if test is None else {"x_test_id": test}
        return [outcome(self.ask(words, model=model, **headers)) for words in progress]


def outcome(got: Received) -> str:
    if got.status != 200:
        return str(got.status)
    frames = re.findall(rb'"text":"([^"]+)"', got.body)
    return f"{len(frames)} {'whole' if b'[DONE]' in got.body else got.end}"


# -- lists


@pytest.mark.parametrize("where", ["header", "prompt"])
def test_a_death_before_the_first_token_shares_its_place_with_the_next_element(
    lab: MemoryLab, where: str
) -> None:
    said = f"<<fault:{RETRIED}>>" if where == "prompt" else ""
    case = Conversation(lab, said)
    header = RETRIED if where == "header" else None
    assert case.outcomes(header, 0, 0, 5, 0) == ["429", "5 fin", "43 whole", "5 fin"]


@pytest.mark.parametrize(
    ("fault", "progress", "met"),
    [
        ("reset;after_chunks=3;delay_ms=0;times=2", (0, 3, 0), ["3 fin", "3 fin", "48 whole"]),
        ("ok;status=503;times=1, ok;status=429;times=2", (0, 0, 0, 0), ["503", "429", "429", "48 whole"]),
        ("ok;status=503;times=1, ok;status=429;times=2", (4,), ["44 whole"]),
        ("ok;times=2, ok;status=500;times=1", (0, 0, 0, 0), ["48 whole", "48 whole", "500", "48 whole"]),
        (
            "cut_between_frames;after_chunks=5;delay_ms=0, ok;status=503;times=2, stall;after_chunks=2;delay_ms=0, ok",
            (0, 5, 5, 5, 7, 5),
            ["5 fin", "503", "503", "2 open", "41 whole", "2 open"],
        ),
        # Each of the places is left behind by words or by requests, whichever way a layer goes.
        (
            "reset;after_chunks=3;delay_ms=0;times=1, stall;after_chunks=2;delay_ms=0;times=1, ok",
            (0, 3, 5, 0),
            ["3 fin", "2 open", "43 whole", "48 whole"],
        ),
        (
            "reset;after_chunks=3;delay_ms=0;times=1, stall;after_chunks=2;delay_ms=0;times=1, ok",
            (0, 0, 2, 0),
            ["3 fin", "2 open", "46 whole", "48 whole"],
        ),
        # What repeats more than it adds takes no word back.
        (
            "reset;after_chunks=5;delay_ms=0, reset;after_chunks=2;overlap=3;delay_ms=0;times=1, ok",
            (0, 5, 4, 5),
            ["5 fin", "2 fin", "44 whole", "43 whole"],
        ),
        (
            "reset;after_chunks=5;delay_ms=0, ok;reject=prefill;times=1, ok;skip=1;after_chunks=2;delay_ms=0;times=1",
            (0, 5, 5, 5),
            ["5 fin", "400", "2 whole", "43 whole"],
        ),
    ],
)
def test_a_list_with_times_meets_requests_in_their_turn(
    lab: MemoryLab, fault: str, progress: tuple[int, ...], met: list[str]
) -> None:
    assert Conversation(lab).outcomes(fault, *progress) == met


def test_fewer_words_than_the_first_death_gave_are_not_the_first_place(lab: MemoryLab) -> None:
    fault = (
        "ok;status=429;times=9, cut_between_frames;after_chunks=5;delay_ms=0, stall;after_chunks=1;delay_ms=0"
    )
    assert Conversation(lab).outcomes(fault, 3, 0) == ["1 open", "429"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("reset;times=0", "times is 0, expected an integer from 1 to 4294967295"),
        ("reset;times=two", "times is 'two', expected an integer"),
        ('reset;test="a b"', "test is 'a b', expected 1 to 64 letters"),
        ("reset;test=", "test is empty, expected 1 to 64 letters"),
        ("reset;test=" + "x" * 65, "test is 'xxx"),
        ("reset;test=a, stall;test=b", "the list has the test ids a and b"),
        (
            "ok;reject=prefill;times=1, stall",
            "element 0 of the list has reject, which the first leg cannot show",
        ),
        ("ok;status=429;times=1, ok;skip=1;times=1, stall", "element 1 of the list has skip"),
        ("ok;status=429, stall", "element 0 of the list adds no word"),
        ("reset, ok;status=429", "element 1 of the list adds no word"),
        ("ok;restart=true;times=1, stall", "element 0 of the list has restart"),
        ("reset;sequence=dup:1;times=1, stall", "element 0 of the list has a sequence"),
    ],
)
def test_what_cannot_be_counted_down_is_refused(text: str, reason: str) -> None:
    for read in (plan_from_header, plan_from_prompt):
        with pytest.raises(DirectiveError) as refused:
            read(text)
        assert str(refused.value).startswith(reason)


def test_a_table_takes_the_keys_too(tmp_path: Path) -> None:
    tables = '[[fault.legs]]\nmode = "overloaded_429"\ntimes = 2\ntest = "t1"\n[[fault.legs]]\nmode = "ok"\n'
    lab = MemoryLab(write(tmp_path, {"lab": MODEL.format(name="lab") + tables}), directives=False)
    case = Conversation(lab)
    assert case.outcomes(None, 0, 0, 0) == ["429", "429", "256 whole"]
    assert case.outcomes(None, 0, test="t1") == ["256 whole"]
    assert case.outcomes(None, 0, test="t2") == ["429"]
    with pytest.raises(DirectiveError, match="times is true, expected an integer"):
        plan_from_table({"mode": "reset", "times": True})


def test_a_leg_that_shows_nothing_of_an_element_does_not_use_it_up(tmp_path: Path) -> None:
    table = '[fault]\nmode = "ok"\nreject = "prefill"\ntimes = 1\n'
    lab = MemoryLab(write(tmp_path, {"lab": MODEL.format(name="lab") + table}))
    assert Conversation(lab).outcomes(None, 0, 3, 3) == ["256 whole", "400", "253 whole"]


def test_an_incident_takes_the_keys_too(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "busy.toml").write_text('close = "terminator"\n[head]\nstatus = 418\n')
    write(tmp_path, {"lab": MODEL.format(name="lab") + '[[fault.legs]]\nmode = "busy"\ntimes = 1\n'})
    assert Conversation(MemoryLab(tmp_path)).outcomes(None, 0, 0) == ["418", "256 whole"]


def test_a_request_that_does_not_stream_counts_too(lab: MemoryLab) -> None:
    case = Conversation(lab)
    headers = {"x_inference_lab_fault": "ok;status=503;times=1, ok;status=429;times=1"}
    assert [case.ask(stream=False, **headers).status for _ in range(3)] == [503, 429, 200]


def test_what_is_refused_has_used_up_nothing(lab: MemoryLab) -> None:
    counted = "mid_reasoning;after_chunks=2;delay_ms=0;times=1"
    assert Conversation(lab).outcomes(counted, 3, 3, 0, 0) == ["400", "400", "2 fin", "48 whole"]


def test_a_refusal_that_is_the_fault_itself_counts(lab: MemoryLab) -> None:
    body = {"model": "lab", "prompt": Conversation(lab).prompt, "stream": True, "top_k": 5}
    headers = {FAULT: "ok;strict_params=true;times=1"}
    assert [lab.exchange(COMPLETIONS, body, headers).status for _ in range(2)] == [400, 200]


# -- tests

STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from((0, 0, 2, 5, 7))), max_size=10)
LISTS = st.sampled_from(
    (
        RETRIED,
        "reset;after_chunks=2;delay_ms=0;times=2",
        "cut_between_frames;after_chunks=5;delay_ms=0;times=1, ok;status=503;times=2, stall;after_chunks=2;delay_ms=0",
        "ok;times=1, ok;status=500;times=1, ok;at=head;close=rst;times=1, cut_between_frames;after_chunks=2;delay_ms=0",
    )
)


@settings(max_examples=60)
@given(LISTS, STEPS, st.sampled_from(("header", "directive")))
def test_two_tests_at_once_meet_what_each_meets_alone(
    shared: MemoryLab, fault: str, steps: list[tuple[str, int]], where: str
) -> None:
    case = Conversation(shared)

    def meet(name: str, progress: int) -> str:
        if where == "header":
            return case.outcomes(fault, progress, test=name)[0]
        return case.outcomes(f"{fault};test={name}", progress)[0]

    together = [(name, meet(f"{name}-together", progress)) for name, progress in steps]
    for name in "ab":
        alone = [meet(f"{name}-alone", progress) for other, progress in steps if other == name]
        assert [met for other, met in together if other == name] == alone


def test_conversations_do_not_use_up_each_others_attempts(lab: MemoryLab) -> None:
    first, second = Conversation(lab), Conversation(lab)
    assert first.outcomes(RETRIED, 0) == second.outcomes(RETRIED, 0) == ["429"]
    assert first.outcomes(RETRIED, 0) == second.outcomes(RETRIED, 0) == ["5 fin"]


ONCE = "ok;status=429;times=1"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({TEST: "a", FAULT: ONCE}, {TEST: "b", FAULT: f"{ONCE};test=a"}),
        ({FAULT: f"{ONCE};test=a"}, {FAULT: f"{ONCE};test=b"}),
        ({FAULT: ONCE}, {FAULT: f'{ONCE}, ok;test="b"'}),
    ],
)
def test_the_header_counts_before_a_directive_and_none_is_a_test_of_its_own(
    lab: MemoryLab, first: dict[str, str], second: dict[str, str]
) -> None:
    body = {"model": "lab", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    for headers in (first, second):
        met = [lab.exchange("/v1/chat/completions", body, headers).status for _ in range(2)]
        assert met == [429, 200], headers


def ask_chat(lab: MemoryLab, text: str, model: str = "lab", **headers: str) -> Received:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True}
    return lab.exchange(
        "/v1/chat/completions", body, {name.replace("_", "-"): value for name, value in headers.items()}
    )


@pytest.mark.parametrize(
    "text",
    [
        "<<fault:ok;test={}>>",
        '<<respond:{{"text":"hi","test":"{}"}}>>',
        "<<fault:reset;test={}>> and what does not decide is not judged <<respond:{{5}}>>",
    ],
)
def test_a_prompt_says_its_test_also_where_it_does_not_decide(lab: MemoryLab, text: str) -> None:
    said = text.format("t1")
    assert ask_chat(lab, said, x_inference_lab_fault=ONCE).status == 429
    assert ask_chat(lab, said, x_inference_lab_fault=f"{ONCE};test=t2").status == 429, (
        "the fault header is nearer"
    )
    assert ask_chat(lab, said, x_inference_lab_fault=ONCE, x_test_id="t1").status == 200, "the same test"
    assert ask_chat(lab, said, x_inference_lab_fault=ONCE).status == 200


def test_a_malformed_directive_that_does_not_decide_is_no_test(lab: MemoryLab) -> None:
    for text in ("<<fault:ok;test=>>", '<<respond:{"test":"a b"}>>', "<<fault:ok;test=a"):
        assert ask_chat(lab, text, x_inference_lab_fault=ONCE).status == 429
        assert ask_chat(lab, text, x_inference_lab_fault=ONCE).status == 200


def test_a_directive_that_only_says_the_test_is_the_engine_streamed_or_not(lab: MemoryLab) -> None:
    case = Conversation(lab, "<<fault:ok;test=t1>>")
    assert case.outcomes(None, 0, 5) == ["48 whole", "43 whole"]
    assert case.ask(stream=False).json["usage"]["completion_tokens"] == 48
    headers = {"x_inference_lab_fault": "ok;test=t1;name=x"}
    assert Conversation(lab).ask(stream=False, **headers).status == 200


def test_an_echo_says_its_test(lab: MemoryLab) -> None:
    got = ask_chat(lab, '<<respond:{"text":"hi","test":"t-1"}>>')
    assert (got.status, b'"content":"hi"' in got.body) == (200, True)
    refused = ask_chat(lab, '<<respond:{"text":"hi","test":"t 1"}>>')
    assert (refused.status, refused.error["code"]) == (400, "invalid_request")
    assert "test is 't 1', expected 1 to 64 letters" in refused.error["message"]


@pytest.mark.parametrize("sent", ["", "a b", "é", "x" * 65, "a,a", "t/1"])
def test_a_header_that_is_no_id_is_refused_before_the_body_is_read(lab: MemoryLab, sent: str) -> None:
    got = lab.exchange(COMPLETIONS, b"{", {TEST: sent})
    assert (got.status, got.error["code"], got.error["param"]) == (400, "invalid_test_id", TEST)
    assert "expected 1 to 64 letters, digits, dots, dashes and underscores" in got.error["message"]
    assert lab.exchange(COMPLETIONS, b"{", {TEST: "x" * 64}).error["code"] == "invalid_request"


def test_two_headers_are_no_id(lab: MemoryLab) -> None:
    data = request("POST", COMPLETIONS, b"{}", headers={TEST: "a"})
    twice = data.replace(b"x-test-id: a\r\n", b"x-test-id: a\r\nx-test-id: a\r\n")
    assert data != twice
    assert lab.send(twice).error["code"] == "invalid_test_id"


# -- DELETE /lab/attempts


def delete(lab: MemoryLab, query: str) -> Received:
    return lab.send(request("DELETE", f"/lab/attempts{query}"))


def test_attempts_are_forgotten_by_test_by_prompt_by_both_or_all(lab: MemoryLab) -> None:
    cases = [Conversation(lab), Conversation(lab)]
    prompts = [f"{case.position.key:016x}" for case in cases]

    def use() -> list[list[str]]:
        return [case.outcomes(RETRIED, 0, test=test) for case in cases for test in ("a", "b", None)]

    assert use() == [["429"]] * 6
    assert use() == [["5 fin"]] * 6
    again, used = ["429"], ["5 fin"]
    for query, forgotten, met in (
        ("?test=a", 2, [again, used, used] * 2),
        (f"?prompt={prompts[0]}", 3, [again] * 3 + [used] * 3),
        (f"?prompt={prompts[1]}&test=b", 1, [used] * 4 + [again, used]),
        ("?test=nobody", 0, [used] * 6),
        ("?all=true", 6, [again] * 6),
    ):
        got = delete(lab, query)
        assert (got.status, got.json) == (200, {"deleted": forgotten}), query
        assert use() == met, query


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "no filter: to forget all attempts say all=true"),
        ("?all=false", "all: is 'false', expected true"),
        ("?all=true&test=a", "all: goes without a filter"),
        ("?tests=a", "tests: no such filter, expected test, prompt, all"),
        ("?test=a&test=b", "test: given more than once"),
        ("?test=a&prompt", "prompt: without a value"),
        ("?test=", "test: is '', expected 1 to 64"),
        ("?test=a%20b", "test: is 'a b', expected 1 to 64"),
        ("?prompt=12AB", "prompt: is '12AB', expected 16 hex digits"),
    ],
)
def test_a_query_that_does_not_say_what_to_forget_is_refused(lab: MemoryLab, query: str, reason: str) -> None:
    got = delete(lab, query)
    assert (got.status, got.error["code"]) == (400, "invalid_request")
    assert got.error["message"].startswith(reason)


def test_the_route_is_there_with_directives_only_and_has_no_other_method(
    lab: MemoryLab, models: Path
) -> None:
    closed = delete(MemoryLab(models, directives=False), "?all=true")
    assert (closed.status, closed.error["code"]) == (404, "not_found")
    for method in ("GET", "POST"):
        got = lab.send(request(method, "/lab/attempts", b"" if method == "POST" else None))
        assert (got.status, got.headers["allow"]) == (405, "DELETE, OPTIONS")
    preflight = lab.send(request("OPTIONS", "/lab/attempts"))
    assert preflight.headers["access-control-allow-methods"] == "DELETE, OPTIONS"
    headers = {FAULT: "reset"}
    got = lab.send(request("DELETE", "/lab/attempts?all=true", headers=headers))
    assert got.error["code"] == "invalid_fault_directive"


# -- looking, and counting


def test_a_preview_shows_the_keys_and_counts_nothing(lab: MemoryLab) -> None:
    fault = "ok;status=429;times=1;test=t, cut_between_frames;after_chunks=5;times=2, ok;times=3, ok"
    for legs in (
        preview(fault),
        lab.send(request("GET", "/lab/faults/" + fault.replace(" ", "%20"))).json,
        lab.send(request("GET", "/lab/faults/" + fault.replace(" ", "%20"))).json,
    ):
        shown: list[dict[str, Any]] = legs
        assert [(leg["leg"], leg["progress"], leg.get("times")) for leg in shown] == [
            (0, 0, 1),
            (0, 0, 2),
            (1, 5, 3),
            (1, 5, None),
        ]
        assert shown[0]["fault"].endswith(";status=429;test=t;times=1")
        assert shown[2]["end"] == shown[3]["end"] == "as the engine answers"
    assert Conversation(lab).outcomes(RETRIED, 0, 0) == ["429", "5 fin"]


def test_where_nothing_can_be_counted_the_request_is_a_503_and_others_are_answered(
    models: Path, tmp_path: Path
) -> None:
    lab = MemoryLab(models, attempts=Attempts(tmp_path))
    got = Conversation(lab).ask(x_inference_lab_fault="reset;times=1")
    assert (got.status, got.error["code"], got.error["type"]) == (503, "attempts_unavailable", "server_error")
    assert got.error["message"] == "attempts cannot be counted: unable to open database file"
    assert not list(tmp_path.iterdir()), "an empty file would count from nothing"
    assert delete(lab, "?all=true").error["code"] == "attempts_unavailable"
    assert Conversation(lab).outcomes("ok;status=429", 0) == ["429"]


def test_a_file_is_one_count_for_all_who_have_it_open_and_says_when_it_is_full(tmp_path: Path) -> None:
    folder = tmp_path / "what?#é%"
    folder.mkdir()
    prepare(folder)
    first, second = Attempts(folder), Attempts(folder)
    assert [counter.take("t", 7, 0, 3) for counter in (first, second, first, second, first)] == [
        *(True, True, True),
        *(False, False),
    ]
    second.give_back("t", 7, 0)
    assert [first.take("t", 7, 0, 3), second.take("t", 7, 0, 3)] == [True, False]
    assert first.delete(test="t") == 1
    small = Attempts(most_pages=8)
    with pytest.raises(AttemptsError, match="database or disk is full"):
        fill(small)
    assert small.delete() > 100
    assert small.take(None, 0, 0, 1)


def fill(attempts: Attempts) -> None:
    for prompt in range(10_000):
        attempts.take(None, prompt, 0, 1)


def test_counts_are_let_go_of_in_whichever_thread_the_collector_works(tmp_path: Path) -> None:
    prepare(tmp_path)
    for held in ([Attempts()], [Attempts(tmp_path)]):
        held[0].delete()
        collector = Thread(target=held.clear)
        collector.start()
        collector.join(60)
        assert held == []  # what is raised meanwhile, pytest makes an error of
