"""The pytest plugin: fixtures, and the marker `fault`. Until a fixture is used it loads the standard library only."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from inference_lab.testing.child import ServerError, running_lab
from inference_lab.testing.lab import CurrentTest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inference_lab.testing.lab import InferenceLab
    from inference_lab.testing.reactor import ReactorLab

_CURRENT = pytest.StashKey[CurrentTest]()


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line(
        "markers",
        "fault(directive): how streams die that this test asks for with inference_lab.fault() or .prompt()",
    )
    config.stash[_CURRENT] = CurrentTest()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tell the lab, which lives for the whole session, whose turn it is."""
    marker = item.get_closest_marker("fault")
    marked = None if marker is None else (*marker.args, *marker.kwargs.items())
    item.config.stash[_CURRENT].begin(item.nodeid, marked)


@pytest.fixture(scope="session")
def inference_lab_options() -> Sequence[str]:
    """Options of `inference-lab serve` for the lab of this session; a conftest.py may define the fixture anew."""
    return ()


@pytest.fixture(scope="session")
def inference_lab(
    pytestconfig: pytest.Config, inference_lab_options: Sequence[str]
) -> Iterator[InferenceLab]:
    """A lab in a child process on a free port."""
    options = _words(inference_lab_options)
    with contextlib.ExitStack() as stack:
        try:
            lab = stack.enter_context(running_lab(*options, current=pytestconfig.stash[_CURRENT]))
        except ServerError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        yield lab


@pytest.fixture(scope="session")
def inference_lab_in_process(
    pytestconfig: pytest.Config, inference_lab_options: Sequence[str]
) -> Iterator[ReactorLab]:
    """A lab on the reactor that pytest-twisted runs."""
    if not pytestconfig.pluginmanager.hasplugin("twisted"):
        pytest.fail("inference_lab_in_process needs pytest-twisted, whose reactor it runs on", pytrace=False)
    from pytest_twisted import (  # type: ignore[import-untyped] # noqa: PLC0415 - nothing is loaded before its use
        blockon,
    )
    from twisted.internet import reactor  # noqa: PLC0415

    from inference_lab.testing.reactor import ReactorLab  # noqa: PLC0415

    options = _words(inference_lab_options)
    try:
        lab = ReactorLab(reactor, *options, current=pytestconfig.stash[_CURRENT])
    except ServerError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    yield lab
    blockon(lab.close())


def _words(options: Sequence[str]) -> Sequence[str]:
    if isinstance(options, str):
        pytest.fail(
            f"inference_lab_options is a text, expected a list of words: {options.split()}", pytrace=False
        )
    return options
