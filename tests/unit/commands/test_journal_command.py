"""`inference-lab journal --follow` on a file: each request once, as it ends, whenever it began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from inference_lab.commands import journal
from inference_lab.storage.database import Database, prepare
from tests.support.rows import NOW, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Writes a row under a number; its path is what it is told by."""
    prepare(str(tmp_path / "j"))
    database = Database(str(tmp_path / "j"), 1)

    def write(number: int, time: float, **more: Any) -> None:
        database.write({number: row(time, **more)}, most_rows=100, oldest=0)

    yield write
    database.close()


@pytest.fixture
def followed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., list[str]]:
    """The paths that are shown while one step after the other happens between two looks."""

    def follow(steps: Sequence[Callable[[], None]], *options: str) -> list[str]:
        left = iter(steps)

        def sleep(_: float) -> None:
            step = next(left, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(journal.time, "sleep", sleep)
        assert journal.main(["--file", str(tmp_path / "j"), "--follow", *options]) == 0
        return [line.split()[3] for line in capsys.readouterr().out.splitlines()]

    return follow


def test_a_row_that_comes_behind_a_later_one_is_shown(
    followed: Callable[..., list[str]], write: Callable[..., None]
) -> None:
    steps = [
        lambda: write(1, NOW, path="/later"),
        lambda: write(2, NOW - 1, path="/of-another-worker"),
        lambda: write(3, NOW + 60, path="/much-later"),
    ]
    shown = followed(steps)
    assert shown == ["/later", "/of-another-worker", "/much-later"]


def test_how_a_request_ends_is_looked_at_when_it_has(
    followed: Callable[..., list[str]], write: Callable[..., None]
) -> None:
    steps = [
        lambda: write(1, NOW, path="/long", state="open"),
        lambda: write(2, NOW + 60, path="/short", ending="fin"),
        lambda: write(3, NOW + 61, path="/other", ending="rst"),
        lambda: write(1, NOW, path="/long", ending="fin"),
    ]
    shown = followed(steps, "--ending", "fin")
    assert shown == ["/short", "/long"]


def test_what_is_from_before_since_is_not_shown(
    followed: Callable[..., list[str]], write: Callable[..., None]
) -> None:
    write(1, NOW - 1, path="/before")
    steps = [lambda: write(2, NOW + 1, path="/behind")]
    shown = followed(steps, "--since", str(NOW))
    assert shown == ["/behind"]
