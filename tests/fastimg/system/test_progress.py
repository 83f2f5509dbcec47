"""The live line: at every width what matters first, and nothing that is no longer true."""

import io
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console, ConsoleOptions, RenderResult

from fastimg.system import measurement
from fastimg.system.progress import Display, Line
from fastimg.system.terminal import print_rows, wrapped

LINE = Line(epoch=1, step=1234, loss=2.34567, score="top1 45.00%", lr=1e-3, speed=812.3, wait_share=0.03, eta=4500.0)


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def display(clock: _Clock) -> Iterator[Display]:
    yield Display(Console(file=io.StringIO(), force_terminal=True, width=80, _environ={}), 100, 5005, clock)


def drawn(display: Display, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, _environ={})
    with console.capture() as capture:
        console.print(display)
    lines = capture.get().splitlines()
    assert len(lines) == 1 and len(lines[0]) <= width, lines
    return re.sub("━+", "━", lines[0].rstrip())


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (60, "0:59  epoch 2/100  1234/5005  loss 2.3457  ETA 1:15:00"),
        (80, "0:59  epoch 2/100  ━  1234/5005  loss 2.3457  top1 45.00%  ETA 1:15:00"),
        (100, "0:59  epoch 2/100  ━  1234/5005  loss 2.3457  top1 45.00%  ETA 1:15:00  812.3 img/s"),
        (
            140,
            "0:59  epoch 2/100  ━  1234/5005  loss 2.3457  top1 45.00%  ETA 1:15:00  812.3 img/s  data wait   3%  "
            "lr 1.00e-03",
        ),
        (40, "epoch 2/100  1234/5005  loss 2.3457"),
    ],
)
def test_what_matters_first_is_shown_at_every_width(display: Display, clock: _Clock, width: int, shown: str) -> None:
    clock.now = 59.0
    display.advance(1, 1234)
    display.show(LINE)
    assert drawn(display, width) == shown


def test_it_is_drawn_twice_a_second_and_with_the_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Display.__rich_console__
    steps = []

    def counting(self: Display, console: Console, options: ConsoleOptions) -> RenderResult:
        steps.append(self._step)
        return draw(self, console, options)

    monkeypatch.setattr(Display, "__rich_console__", counting)
    console = Console(file=io.StringIO(), force_terminal=True, width=80, _environ={})
    began = time.monotonic()
    with Display(console, 1, 1000) as display:
        for step in range(1, 121):
            display.advance(0, step)
            display.glance(replace(LINE, epoch=0, step=step))
            time.sleep(0.01)
    assert len(steps) <= 2 * (time.monotonic() - began) + 2  # at the start and at the end, too
    assert steps[-1] == 120


def test_what_is_shown_is_true(display: Display, clock: _Clock) -> None:
    assert drawn(display) == "0:00  epoch 1/100  ━  0/5005  in the first step"
    clock.now = 5.0  # the clock moves within a step
    assert drawn(display).startswith("0:05")
    display.advance(0, 1)
    display.glance(replace(LINE, epoch=0, step=1, speed=0.0, eta=1e9))
    assert drawn(display) == "0:05  epoch 1/100  ━  1/5005  loss 2.3457  top1 45.00%  lr 1.00e-03"
    display.glance(replace(LINE, epoch=0, step=1, eta=100.0))
    clock.now = 8.0
    assert "loss 2.3457" in drawn(display) and "ETA 1:37" in drawn(display)
    display.note("validation 1/9")
    clock.now = 12.0
    display.note("validation 4/9")
    assert drawn(display) == "0:12  epoch 1/100  ━  1/5005  validation 4/9, 0:04  ETA 1:33"
    display.advance(1, 1)  # the next epoch trains, and has no loss yet
    assert drawn(display) == "0:12  epoch 2/100  ━  1/5005  ETA 1:33"
    display.glance(replace(LINE, step=3, loss=1.0, speed=0.0))
    assert "ETA 1:33  812.3 img/s" in drawn(display, 100)
    display.show(replace(LINE, step=2, loss=2.0))  # logged a line later, as on a GPU
    assert "loss 1.0000" in drawn(display)


def test_lines_break_between_words_and_paths_do_not() -> None:
    path = "/a/long/path/" + "x" * 60
    command = "`fastimg convert photos DST`"
    text = f"fastimg: error: {path} is a plain folder whose files cannot be read; {command} stores them"
    lines = wrapped(text, 40)
    assert " ".join(lines) == text and path in lines and any(command in line for line in lines)
    assert all(len(line) <= 40 or line == path for line in lines)
    assert wrapped("loader      native, 1 thread, JPEGs decoded on the CPU", 40) == [
        "loader      native, 1 thread, JPEGs",
        "            decoded on the CPU",
    ]
    assert wrapped(text, 200) == [text]


def test_rows_wrap_below_their_beginning_and_keep_paths() -> None:
    path = "runs/" + "x" * 60
    printed = io.StringIO()
    console = Console(file=printed, force_terminal=True, width=40, _environ={}, color_system=None)
    print_rows(console, [("data", "one two three four five six seven"), ("run", path)])
    assert printed.getvalue().splitlines() == ["data  one two three four five six seven", "run", path]
    print_rows(console, [("run", f"a run in the directory named after its data: {path}")])
    assert printed.getvalue().splitlines()[3:] == [
        "run  a run in the directory named after",
        "     its data:",
        path,
    ]


def test_a_path_that_fits_on_a_line_of_its_own_has_one() -> None:
    path = "runs/" + "x" * 30
    printed = io.StringIO()
    console = Console(file=printed, force_terminal=True, width=40, _environ={}, color_system=None)
    print_rows(console, [("best checkpoint", path), ("last checkpoint", f"none, or {path}, or")])
    assert printed.getvalue().splitlines() == [
        "best checkpoint",
        f"     {path}",
        "last checkpoint  none, or",
        f"    {path},",
        "                 or",
    ]
    assert wrapped(f"run          {path}", 40) == ["run", f"     {path}"]


def test_a_narrow_table_of_rates_leaves_out_their_range_and_breaks_no_number() -> None:
    rows = [
        {"stage": "read, cold", "img/s": "216,711", "range": "216,711 - 316,711", "per core": "216,711", "n": 10},
        {"stage": "step", "img/s": "313", "range": "313 - 316", "per core": "313", "n": 10},
    ]
    for width, whole in ((50, False), (80, True)):
        printed = io.StringIO()
        measurement.show(Console(file=printed, force_terminal=True, width=width, _environ={}), "stages", rows)
        lines = printed.getvalue().splitlines()
        assert printed.getvalue().count("216,711") == (3 if whole else 2) and ("316,711" in printed.getvalue()) == whole
        assert any("read, cold" in line for line in lines) and ("range: on a wider" in lines[0]) != whole
