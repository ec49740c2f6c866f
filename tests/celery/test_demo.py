"""The demo, run as a person runs it: real servers, workers, producers and faults."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from PIL import Image

from example_project.demo.act_reports import judge
from example_project.demo.pictures import AT_MOST, SHIPPED, NoPictures, find
from example_project.demo.tally import Tally
from example_project.journal import Entry, Journal, Reader
from example_project.settings import REPORT_EVERY
from localservers import Valkey

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def demo(out: Path, *arguments: str, photos: str = "") -> Iterator[subprocess.Popen]:
    """The demo as a process of its own, ended in any case."""
    command = [sys.executable, "-u", "-m", "example_project.demo", "--out", str(out), *arguments]
    environment = {**os.environ, "PHOTOS": photos, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def finished(process: subprocess.Popen) -> tuple[int, str]:
    """How it ended and what it printed."""
    output, _ = process.communicate(timeout=240)
    return process.returncode, output


def names(folder: Path) -> set[str]:
    """What lies in a folder."""
    return {path.name for path in folder.iterdir()}


def left_behind(out: Path) -> list[str]:
    """Processes that carry the demo's folder in their command or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            text = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(out) in part for part in text):
            found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


@pytest.fixture
def valkey_program(servers):
    """There is a server program (or the test is skipped, as for other servers)."""
    servers.start(Valkey).close()


@pytest.fixture
def outside(tmp_path, monkeypatch) -> Path:
    """The folder where whatever the demo starts would leave temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("valkey_program")
def test_pictures_are_made_and_never_twice_at_once(tmp_path, outside):
    """Two of five lock servers die, every picture is made, and the exit status says so."""
    out = tmp_path / "out"
    with demo(out, "--act", "thumbnails", "--seconds", "4") as process:
        status, output = finished(process)
    assert (status, "All is well" in output) == (0, True), output
    assert output.count("killed (SIGKILL) at") == 2
    assert 3 * len(list(SHIPPED.iterdir())) == len(list((out / "thumbnails").iterdir()))
    assert {"journal.jsonl", "thumbnails", "worker.log"} == names(out)
    assert left_behind(out) == []
    assert names(outside) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("valkey_program")
def test_plain_tasks_are_found_out(tmp_path):
    """The negative control: without locks the demo sees doubled work and a lost posting."""
    with demo(tmp_path / "out", "--without-locks", "--seconds", "2") as process:
        status, output = finished(process)
    assert status == 1, output
    assert "times at once" in output
    assert "account 1 has" in output
    assert "reports were made in the time of" in output


@pytest.mark.slow
@pytest.mark.usefixtures("valkey_program")
def test_the_frozen_holder_is_refused(tmp_path):
    """The older fencing token is refused after the newer one, and the balance is exact."""
    with demo(tmp_path / "out", "--act", "ledger") as process:
        status, output = finished(process)
    assert (status, "StaleTokenError" in output) == (0, True), output
    assert "balance 20.00" in output


@pytest.mark.slow
@pytest.mark.usefixtures("valkey_program")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "moment", ["lock servers (ports", "act 1", ", made ", "killed lock server 2"]
)
def test_a_signal_leaves_nothing_behind(tmp_path, outside, number, moment):
    """Stopped at any moment, it ends every process and leaves no file outside its folder."""
    out = tmp_path / "out"
    with demo(out, "--without-locks", "--seconds", "4") as process:
        for line in process.stdout:
            if moment in line:
                break
        process.send_signal(number)
        status, output = finished(process)
    assert (128 + number, True) == (status, "every process has been ended" in output), output
    assert left_behind(out) == []
    assert ".running" not in names(out)
    assert names(outside) == set()


def test_a_second_demo_is_turned_away(tmp_path):
    """Two demos in one folder would remove each other's files, so the second one says so."""
    with demo(tmp_path) as first:
        first.stdout.readline()
        with demo(tmp_path) as second:
            status, output = finished(second)
    assert status == 2
    assert "another demo is running" in output


def picture(path: Path) -> None:
    """Write a small JPEG."""
    Image.new("RGB", (40, 30), "teal").save(path, "JPEG")


def broken(folder: Path) -> None:
    """Leave only files that can't be used."""
    (folder / "notes.txt").write_text("milk, eggs")
    half = folder / "half.jpg"
    Image.effect_noise((300, 200), 80).save(half, "JPEG")
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])


@pytest.mark.parametrize(
    "prepare, said",
    [
        (lambda folder: folder.rmdir(), "there is no such folder"),
        (lambda folder: None, "this folder is empty"),
        (lambda folder: (folder / "sub").mkdir(), "only folders in it"),
        (lambda folder: (folder.rmdir(), folder.write_text("")), "this is a file"),
        (broken, "notes.txt: not a picture that Pillow can read"),
        (broken, "half.jpg: can't be read: image file is truncated"),
    ],
)
def test_a_folder_without_pictures_is_explained(tmp_path, prepare, said):
    """A bad PHOTOS gives a message that names the folder and what is wrong with it."""
    folder = tmp_path / "photos"
    folder.mkdir()
    prepare(folder)
    with pytest.raises(NoPictures) as caught:
        find(str(folder))
    assert f"PHOTOS={folder}: " in str(caught.value)
    assert said in str(caught.value)


def test_the_message_reaches_the_user(tmp_path):
    """A bad PHOTOS ends the demo with status 2 and the message, without a traceback."""
    with demo(tmp_path / "out", photos=str(tmp_path / "nowhere")) as process:
        status, output = finished(process)
    told = f"PHOTOS={tmp_path / 'nowhere'}: there is no such folder."
    assert status == 2
    assert "".join(told.split()) == "".join(output.split())  # a long path is broken into lines


@pytest.mark.usefixtures("valkey_program")
def test_a_ledger_that_does_not_answer_is_explained(tmp_path, monkeypatch):
    """A bad LEDGER_URL ends the demo at once with status 2 and a message without the password."""
    monkeypatch.setenv("LEDGER_URL", f"sqlite:///{tmp_path}/missing/ledger?password=secret")
    with demo(tmp_path / "out") as process:
        status, output = finished(process)
    assert status == 2
    assert "this database can't be used" in output
    assert "secret" not in output


def test_the_usable_pictures_are_taken(tmp_path):
    """Bad files are named and left out, hidden ones ignored, and there is a bound."""
    for number in range(AT_MOST + 2):
        picture(tmp_path / f"{number:02}.jpg")
    (tmp_path / "00.jpg").write_text("no picture")
    (tmp_path / ".hidden").write_text("no picture")
    found = find(str(tmp_path))
    assert [f"{number:02}.jpg" for number in range(1, AT_MOST + 1)] == [f.name for f in found.files]
    assert found.left_out == {"00.jpg": "not a picture that Pillow can read"}
    assert found.more == 1


def entry(what: str, who: str = "h/1", **facts: object) -> Entry:
    """A line about the one picture of these tests."""
    return Entry(what, "a.jpg", who, 0.0, facts)


WELL = [
    *(entry("asked") for _ in range(3)),
    entry("begin", "h/1"),
    entry("end", "h/1"),
    entry("begin", "h/2"),
    entry("end", "h/2"),
    entry("made"),
    entry("made"),
    entry("skipped", holder="h/1"),
]


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda lines: lines, ""),
        (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], "made 2 times at once"),
        (lambda lines: [*lines[:3], *lines[7:]], "never made"),
        (lambda lines: lines[:6] + lines[7:], "never ended"),
        (lambda lines: lines[:-2] + lines[-1:], "1 of 3 asks got no answer"),
        (lambda lines: [*lines[:-2], entry("failed", error="Oops"), lines[-1]], "1 asks failed"),
        (lambda lines: [*lines[:-1], entry("made")], "nothing was shown"),
        (lambda lines: [*lines, entry("killed")], "nothing was made any more"),
    ],
)
def test_the_judge_sees_what_must_not_happen(change, said):
    """Each kind of bad journal is found out, and a good one is not."""
    tally = Tally(["a.jpg"])
    tally.add(change(WELL))
    problems = tally.problems()
    assert bool(said) == bool(problems), problems
    assert said in " ".join(problems)


def test_a_journal_is_followed_by_whole_lines(tmp_path):
    """A reader gets each line once, in order, and waits for the rest of half a line."""
    journal, reader = Journal(tmp_path / "j"), Reader(tmp_path / "j")
    assert reader.new() == []
    with journal.body("a", n=1):
        assert [(e.what, e.subject, e.facts) for e in reader.new()] == [("begin", "a", {"n": 1})]
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-5])
    assert reader.new() == []
    journal.path.write_bytes(whole)
    assert [e.what for e in reader.new()] == ["end"]


def test_waiting_for_a_line_keeps_the_lines_after_it(tmp_path):
    """Two lines that were written at once are found one after the other."""
    journal, reader = Journal(tmp_path / "j"), Reader(tmp_path / "j")
    for number in range(3):
        journal.write("report", "stock", number=number)
    found = [reader.wait_for(lambda e: e.what == "report", 1.0).facts["number"] for _ in range(2)]
    assert found == [0, 1]
    assert [e.facts["number"] for e in reader.new()] == [2]
    with pytest.raises(TimeoutError):
        reader.wait_for(lambda e: True, 0.05)


@pytest.mark.parametrize(
    "times, said",
    [
        ([0, 1, 2, 3, 4], ""),
        ([0, 1, 2.9, 3.1, 4], ""),
        ([0, 0.1, 1, 1.1, 2, 2.1], "6 reports were made in the time of 3.1 ticks"),
        ([0, 1, 4, 5], "a gap of 3.0 s"),
        ([0], "not even two"),
    ],
)
def test_the_judge_of_reports(times, said):
    """Doubled and missing reports are found out; lateness within a tick is not held against it."""
    problems = judge([REPORT_EVERY * time for time in times])
    assert bool(said) == bool(problems)
    assert said in " ".join(problems)


@pytest.mark.slow
@pytest.mark.usefixtures("valkey_program")
def test_two_beats_send_each_report_once(tmp_path):
    """One of two beats is killed; each tick has its report."""
    with demo(tmp_path / "out", "--act", "reports") as process:
        status, output = finished(process)
    assert (status, "one report each" in output) == (0, True), output
