"""The recording of the front page: real commands, and what a browser needs to play it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pyte
import pytest

from recording import SPECS, Frame, draw_frames, draw_line, record

ROOT = Path(__file__).parents[1]


def draw(text: bytes) -> str:
    screen = pyte.Screen(20, 1)
    pyte.ByteStream(screen).feed(text)
    return draw_line([screen.buffer[0][column] for column in range(20)])


def test_line_keeps_place_colour_and_weight_of_its_texts() -> None:
    drawn = draw(b"  ab \x1b[1;32mc<d\x1b[0m")
    assert re.findall(r'<text x="(\d+)"', drawn) == ["16", "40"]
    assert 'font-weight="bold">c&lt;d</text>' in drawn


def test_equal_lines_are_stored_once_and_each_frame_has_its_time() -> None:
    line = draw(b"same")
    drawn = draw_frames([Frame(0.0, (line, "")), Frame(4.0, (line, line))])
    ElementTree.fromstring(drawn)
    assert drawn.count("same") == 1
    assert drawn.count("<use ") == 3
    assert "40.000%{" in drawn


def test_committed_recording_is_small_and_shows_kill_resume_and_comparison() -> None:
    shown = (ROOT / "docs" / "images" / "recording.svg").read_text(encoding="utf-8")
    assert len(shown.encode()) < 300_000
    assert (ROOT / "docs" / "images" / "report.png").stat().st_size < 300_000
    for part in ("Killed", "were finished before", "difference", *SPECS):
        assert part in shown


@pytest.mark.wide
def test_commands_of_the_recording_still_do_what_it_shows(tmp_path: Path) -> None:
    drawn = record(tmp_path, limit=12)
    for part in ("Killed", "were finished before", "difference"):
        assert part in drawn
