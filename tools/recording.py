"""Record real commands in a terminal as an animated SVG: `uv run tools/recording.py FILE`.

The commands run in a pseudo-terminal and in an empty folder; one is killed midway by SIGKILL, as a
machine without memory would. Each screen is that of a terminal emulator that read their output.
Pauses are shortened, and nothing else. A browser shows the frames one after another by CSS alone,
and the last one where a reader prefers less motion.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[1]
COLUMNS, ROWS = 100, 28
CELL, LINE, MARGIN = 8.0, 17.0, 14.0
FRAME_S, PAUSE_S, LAST_S = 0.2, 0.6, 6.0
"""Seconds between frames at least, of a pause at most, and of the last screen."""
SPECS = {
    "asked.yaml": "Question: {question}\\nAnswer:",
    "bare.yaml": "{question}",
}
"""The specs of the recording, and the prompt in which they differ."""
SPEC = """\
engine: Reference
model: {{path: builtin:tiny, label: tiny}}
tests:
  - type: generation
    data: builtin:tiny/sums
    prompt: "Question: {{question}}\\nAnswer:"
    target: answer
    max_new_tokens: 48
  - type: multiple_choice
    data: builtin:tiny/choices
    prompt: "{prompt}"
    choices: choices
    target: answer
"""
COLOURS = {
    "default": "#d8dee9", "black": "#3b4252", "red": "#ff7b85", "green": "#a3d977",
    "brown": "#ecc66d", "blue": "#7fb4ff", "magenta": "#d6a2e8", "cyan": "#77d5e0",
    "white": "#e5e9f0", "brightblack": "#8a93a5", "brightred": "#ff9aa2",
    "brightgreen": "#b9e694", "brightbrown": "#f2d58d", "brightblue": "#a3caff",
    "brightmagenta": "#e3bff0", "brightcyan": "#98e3ec", "brightwhite": "#ffffff",
}  # fmt: skip
BACKGROUND = "#1e222a"


@dataclass(frozen=True)
class Step:
    command: str
    killed_after: int | None = None
    """So many samples after which the command is killed."""


@dataclass(frozen=True)
class Frame:
    at: float
    lines: tuple[str, ...]
    """The lines of the screen as parts of an SVG."""


class Recording:
    """A terminal in which commands run, and the frames of its screen."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._clock = 0.0
        self._shown = time.monotonic()
        self.frames: list[Frame] = []

    def run(self, step: Step) -> int:
        """Type and run one command; return its exit status, negative for a signal."""
        self._type(step.command)
        master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        variables = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "NO_COLOR", "CI"):
            variables.pop(name, None)
        name, *arguments = shlex.split(step.command)
        program = shutil.which(name, path=str(Path(sys.executable).parent))
        assert program, f"{name} isn't installed in this environment"
        process = subprocess.Popen(
            [program, *arguments],
            cwd=self._folder,
            env=variables,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        for output in read_output(master):
            self._show(output)
            if step.killed_after and self._count_samples() >= step.killed_after:
                process.send_signal(signal.SIGKILL)
        status = process.wait()
        if status == -signal.SIGKILL:
            self._show(b"\r\n\x1b[?25hKilled\r\n")
        return status

    def _type(self, command: str) -> None:
        self._show(b"\x1b[1;32m$\x1b[0m ", pause=PAUSE_S)
        for start in range(0, len(command), 3):
            self._show(command[start : start + 3].encode(), pause=0.1)
        self._show(b"\r\n", pause=0.4)

    def _show(self, output: bytes, pause: float | None = None) -> None:
        """Put output on the screen after a pause, by default the one since the last output."""
        now = time.monotonic()
        passed = now - self._shown if pause is None else pause
        self._shown = now
        self._clock += min(passed, PAUSE_S)
        self._stream.feed(output)
        frame = Frame(self._clock, tuple(map(draw_line, self._rows())))
        if self.frames and self._clock - self.frames[-1].at < FRAME_S:
            frame = Frame(self.frames.pop().at, frame.lines)
        self.frames.append(frame)

    def _rows(self) -> Iterator[list[pyte.screens.Char]]:
        for row in range(ROWS):
            line = self._screen.buffer[row]
            yield [line[column] for column in range(COLUMNS)]

    def _count_samples(self) -> int:
        found = re.findall(r"(\d+)/\d+", "\n".join(self._screen.display))
        return int(found[-1]) if found else 0


def read_output(terminal: int) -> Iterator[bytes]:
    """Yield what is written to a terminal until its last writer is gone."""
    with os.fdopen(terminal, "rb", buffering=0) as file:
        while True:
            select.select([file], [], [])
            try:
                output = file.read(65536)
            except OSError:  # Linux says so, other systems return nothing
                return
            if not output:
                return
            yield output


def draw_line(characters: Sequence[pyte.screens.Char]) -> str:
    """Return the texts of one line of the screen, each of one colour and weight, as SVG."""
    drawn: list[str] = []
    column = 0
    for (colour, bold), group in groupby(characters, lambda one: (one.fg, one.bold)):
        text = "".join(one.data for one in group)
        shown = text.strip(" ")
        if shown:
            x = (column + len(text) - len(text.lstrip(" "))) * CELL
            fill = COLOURS.get(colour, f"#{colour}")
            weight = ' font-weight="bold"' if bold else ""
            paint = "" if colour == "default" else f' fill="{fill}"'
            width = f'textLength="{len(shown) * CELL:g}"'
            drawn.append(f'<text x="{x:g}" {width}{paint}{weight}>{escape(shown)}</text>')
        column += len(text)
    return "".join(drawn)


def draw_frames(frames: Sequence[Frame]) -> str:
    """Return the SVG that shows the frames below each other through a window that moves."""
    lines = sorted({line for frame in frames for line in frame.lines if line})
    names = {line: f"l{number}" for number, line in enumerate(lines)}
    width, height = COLUMNS * CELL, ROWS * LINE
    length = frames[-1].at + LAST_S
    keys = "".join(
        f"{frame.at / length:.3%}{{transform:translateY({-number * height:g}px)}}"
        for number, frame in enumerate(frames)
    )
    defined = "".join(f'<g id="{names[line]}">{line}</g>' for line in lines)
    used = "".join(
        f'<use href="#{names[line]}" y="{number * height + (row + 0.8) * LINE:g}"/>'
        for number, frame in enumerate(frames)
        for row, line in enumerate(frame.lines)
        if line
    )
    last = f"translateY({-(len(frames) - 1) * height:g}px)"
    style = (
        "text{white-space:pre;font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
        f"@keyframes play{{{keys}}}"
        f".film{{animation:play {length:.2f}s steps(1,end) infinite}}"
        f"@media (prefers-reduced-motion){{.film{{animation:none;transform:{last}}}}}"
    )
    whole = f"{width + 2 * MARGIN:g} {height + 2 * MARGIN:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole}" role="img" '
        'aria-label="A run is killed, resumed, and compared with another one">'
        f"<style>{style}</style><defs>{defined}</defs>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
        f'<svg x="{MARGIN:g}" y="{MARGIN:g}" width="{width:g}" height="{height:g}" '
        f'fill="{COLOURS["default"]}"><g class="film">{used}</g></svg></svg>\n'
    )


def record(folder: Path, limit: int) -> str:
    """Record the scene in an empty folder over so many rows of each suite; return its SVG."""
    for name, prompt in SPECS.items():
        (folder / name).write_text(SPEC.format(prompt=prompt), encoding="utf-8")
    asked = f"evalution run asked.yaml --limit {limit} --output asked"
    recording = Recording(folder)
    steps = [
        Step(asked, killed_after=limit // 2),
        Step(asked),
        Step(f"evalution run bare.yaml --limit {limit} --output bare"),
        Step("evalution compare asked bare --flipped 3"),
    ]
    for step in steps:
        status = recording.run(step)
        assert status == (-signal.SIGKILL if step.killed_after else 0), (step.command, status)
    return draw_frames(recording.frames)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--limit", type=int, default=60, help="rows of each suite")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        drawing = record(Path(folder), chosen.limit)
    chosen.file.write_text(drawing, encoding="utf-8")
    print(f"{chosen.file}: {len(drawing.encode()) / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
