"""The plugin as a stranger's suite meets it: pytest in a process of its own, with what is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.inner_pytest import BARE, QUIET

LOADED = """
import sys, {first}
before = set(sys.modules)
import {module}
print(*set(sys.modules) - before)
"""

OPTIONS = """
import pytest

@pytest.fixture(scope="session")
def inference_lab_options():
    return {!r}
"""


def loaded(module: str, first: str) -> set[str]:
    """The modules that importing `module` loads behind `first`."""
    command = [sys.executable, "-c", LOADED.format(first=first, module=module)]
    return set(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split())


def test_the_plugin_loads_nothing_but_the_standard_library_until_it_is_used() -> None:
    assert loaded("inference_lab", first="sys") == {"inference_lab"}
    packages = {name.partition(".")[0] for name in loaded("inference_lab.testing.plugin", first="pytest")}
    assert packages - sys.stdlib_module_names == {"inference_lab"}


def test_a_suite_that_does_not_use_it_pays_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded():
            ours = {name for name in sys.modules if name.startswith("inference_lab")}
            assert "inference_lab.testing.plugin" in ours
            assert not {"twisted", "klein", "werkzeug", "msgspec"} & sys.modules.keys()
        """
    )
    result = pytester.runpytest_subprocess(*QUIET, *BARE)
    result.assert_outcomes(passed=1)


def test_a_test_gets_a_server_deaths_and_verdicts(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import httpx, pytest

        @pytest.fixture(scope="session")
        def gateway(inference_lab):
            return inference_lab.url

        @pytest.fixture
        def ask(gateway):
            def ask(messages, headers=None):
                url = gateway + "/v1/chat/completions"
                body = {"model": "lab", "stream": True, "messages": messages}
                with httpx.stream("POST", url, json=body, headers=headers, trust_env=False) as response:
                    yield from response.iter_bytes()
            return ask
        """
    )
    pytester.makepyfile(
        """
        import pytest

        HELLO = [{"role": "user", "content": "hello"}]
        SEEN = []

        @pytest.mark.fault("reset;after_chunks=2")
        def test_marked_by_header(inference_lab, ask):
            verdict = inference_lab.verify(ask(HELLO, inference_lab.fault()))
            assert verdict.is_honest_prefix and verdict.words == {"text": 2}
            (row,) = inference_lab.journal()
            assert (row["test"], row["ending"], row["words"]) == (inference_lab.test, "rst", 2)
            SEEN.append((inference_lab.url, inference_lab.test))

        @pytest.mark.fault("cut_mid_frame;after_chunks=4")
        class TestMarked:
            def test_by_prompt(self, inference_lab, ask):
                verdict = inference_lab.verify(ask([inference_lab.prompt("hello")]))
                assert verdict.is_honest_prefix and verdict.words == {"text": 4}
                (row,) = inference_lab.journal()
                assert (row["test"], row["trigger"]) == (inference_lab.test, "prompt")
                SEEN.append((inference_lab.url, inference_lab.test))

        def test_unmarked(inference_lab, ask):
            assert inference_lab.test is None
            with pytest.raises(ValueError):
                inference_lab.journal()
            assert inference_lab.verify(ask([inference_lab.prompt("hello")]), tokens=48).is_whole
            with pytest.raises(ValueError):
                inference_lab.fault()

        def test_one_server_and_many_ids():
            (first, one), (second, other) = SEEN
            assert first == second and one != other

        @pytest.mark.fault("reset;after_chunks=2")
        def test_wrong(inference_lab, ask):
            assert inference_lab.verify(ask(HELLO, inference_lab.fault())).is_whole
        """
    )
    result = pytester.runpytest_subprocess(*QUIET, "--strict-markers")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        ["E*where False = <honest prefix: words 2 text; finish none; findings 0>.is_whole"]
    )


def test_a_marker_that_says_no_directive_is_no_healthy_stream(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.fault
        def test_bare(inference_lab):
            inference_lab.prompt("hello")

        @pytest.mark.fault(directive="reset")
        def test_by_keyword(inference_lab):
            inference_lab.prompt("hello")

        @pytest.mark.fault("reset", times=2)
        def test_with_more(inference_lab):
            inference_lab.prompt("hello")
        """
    )
    result = pytester.runpytest_subprocess(*QUIET)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["E*@pytest.mark.fault takes one directive*not (*'times', 2*"])


def test_each_worker_of_xdist_has_a_server_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pathlib

        def test_url(inference_lab):
            pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(inference_lab.url)
        """
    )
    result = pytester.runpytest_subprocess(*QUIET, *BARE, "-n", "2", "--dist", "each")
    result.assert_outcomes(passed=2)
    assert len({path.read_text() for path in pytester.path.glob("gw*")}) == 2


def test_the_options_are_the_users(pytester: pytest.Pytester) -> None:
    latency = "[latency]\nttft_ms = 0\nitl_ms = 0\n"
    pytester.makefile(".toml", own=f'model = "llama-3.1-8b-instruct"\nname = "own"\n{latency}')
    pytester.mkdir("faults").joinpath("own-death.toml").write_text(
        'close = "fin"\n[head]\nstatus = 200\n[[events]]\nframe = "data: x"\n'
    )
    pytester.makeconftest(OPTIONS.format(["--config", "own.toml"]))
    pytester.makepyfile(
        """
        import json, pytest, urllib.request

        def test_served(inference_lab):
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(inference_lab.url + "/v1/models") as answer:
                assert [model["id"] for model in json.load(answer)["data"]] == ["own"]

        def test_its_incidents_are_modes(inference_lab):
            inference_lab.fault("own-death")
            with pytest.raises(ValueError, match="own-death"):
                inference_lab.fault("no-death")
        """
    )
    pytester.runpytest_subprocess(*QUIET, *BARE).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--config", "none.toml"], "inference-lab: none.toml: no such file or directory"),
        ("--speed 2", "inference_lab_options is a text, expected a list of words: ['--speed', '2']"),
    ],
)
def test_bad_options_are_told_in_one_line(pytester: pytest.Pytester, options: object, said: str) -> None:
    pytester.makeconftest(OPTIONS.format(options))
    pytester.makepyfile("def test_served(inference_lab): pass")
    result = pytester.runpytest_subprocess(*QUIET, *BARE, "--no-header")
    result.assert_outcomes(errors=1)
    lines = result.outlines
    assert lines[lines.index(said) - 1].startswith("__")
    assert lines[lines.index(said) + 1].startswith("==")
