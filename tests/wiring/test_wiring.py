"""Processes that the command line starts and listens to."""

import os
import signal
import sys
from pathlib import Path

import pytest

from bamboo import wiring
from bamboo.errors import BambooError, InputError
from bamboo.wiring import torch_process
from testbed.waiting import wait_until
from tests.jobs import tiny_job


def speaks(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program of our own in the place of the module that is started."""
    monkeypatch.setattr(
        "bamboo.wiring.torch_process.interpreter", lambda *_: [sys.executable, "-c", program]
    )


def test_progress_is_told_and_what_a_model_prints_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ['{"step": 1, "steps": 2}', "{", "[1]", '{"step": "x"}', '{"work": "a trace"}']
    said += ['{"work": 1, "of": "mine"}', '{"step": 2, "steps": 2}']
    speaks(
        f"import sys; sys.stderr.write({chr(10).join(said) + chr(10)!r});"
        "sys.stdout.write('{\"equal\": true}')",
        monkeypatch,
    )
    told: list[object] = []
    body = torch_process.ask(
        torch_process.Started(("m",)),
        "",
        what="it",
        told=lambda step, steps: told.append((step, steps)),
        works=told.append,
    )
    assert body == {"equal": True}
    assert told == [(1, 2), "a trace", (2, 2)]


def test_a_process_that_breaks_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaks("import sys; sys.stderr.write('first\\nlast\\n'); sys.exit(7)", monkeypatch)
    with pytest.raises(BambooError, match=r"^verify ended with status 7: first \| last$"):
        wiring.run_verify(tmp_path, told=lambda step, steps: None)


def test_of_one_that_ends_without_a_word_the_usual_cause_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speaks("import os; os._exit(7)", monkeypatch)
    with pytest.raises(BambooError, match=r"^it ended with status 7: .*your code ends its proc"):
        torch_process.answer(("m",), "", what="it")


def test_a_long_request_and_a_long_answer_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    speaks(
        "import json, sys; text = sys.stdin.read(); sys.stderr.write('x' * 200_000 + chr(10));"
        "sys.stdout.write(json.dumps({'text': text})); sys.stdout.flush();"
        "sys.stderr.write('y' * 200_000)",
        monkeypatch,
    )
    request = "z" * 300_000
    assert torch_process.answer(("m",), request, what="it") == {"text": request}


def test_text_hashes_alike_in_every_process_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    speaks("import json; print(json.dumps({'hash': hash('text')}))", monkeypatch)
    asked = torch_process.answer(("m",), "", what="it")["hash"]
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    assert torch_process.answer(("m",), "", what="it")["hash"] == asked


def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    speaks("import sys; sys.stdin.read(); import threading; threading.Event().wait()", monkeypatch)
    with pytest.raises(BambooError, match=r"^it took longer than .3 s; take less$"):
        torch_process.answer(
            ("m",),
            "",
            what="it",
            told=lambda step, steps: None,
            deadline_s=0.3,
            too_long="it took longer than .3 s; take less",
        )


@pytest.mark.timeout(60)
def test_an_answer_is_heard_though_a_fork_of_the_users_holds_what_it_was_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_process, "LAST_WORDS_S", 0.2)
    speaks(
        "import json, os, signal; pid = os.fork(); pid or (os.setsid(), signal.pause()); "
        "print(json.dumps({'pid': pid}))",
        monkeypatch,
    )
    pid = torch_process.answer(("m",), "", what="it")["pid"]
    os.kill(pid, signal.SIGKILL)  # nobody else can know of it


@pytest.mark.timeout(60)
@pytest.mark.parametrize("apart", [False, True])
def test_what_a_model_started_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    monkeypatch.setattr(torch_process, "LAST_WORDS_S", 0.2)
    speaks(
        "import json, subprocess, sys; started = subprocess.Popen(['sleep', '600'], stdout=2, "
        f"start_new_session={apart}); print(json.dumps({{'pid': started.pid}}))",
        monkeypatch,
    )
    pid = torch_process.answer(("m",), "", what="it")["pid"]
    if apart:
        os.kill(pid, signal.SIGKILL)  # nobody else can know of it
    wait_until(lambda: not living(pid), what="the end of what it started")


def living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_process_that_is_killed_is_said_to_lack_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    speaks("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", monkeypatch)
    with pytest.raises(BambooError, match=r"^it was killed by SIGKILL, as Linux does when memory"):
        torch_process.answer(("m",), "", what="it")


def test_what_was_found_wrong_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    speaks('import sys; print(\'{"error": "no layers"}\'); sys.exit(2)', monkeypatch)
    with pytest.raises(InputError, match=r"^no layers$"):
        torch_process.answer(("m",), "", what="it")


@pytest.mark.usefixtures("warm_torch")
def test_a_job_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    found = wiring.run_profile(
        tiny_job(tmp_path),
        device="cpu",
        limit_s=30.0,
        machine="here",
        seen="2026-11-21",
        told=lambda step, steps: told.append((step, steps)),
    )
    assert [layer.name for layer in found.layers] == ["Embedding", "Block", "Block", "Head"]
    assert (found.job, found.machine, found.seen) == ("job.toml", "here", "2026-11-21")
    assert told[-1][0] == told[-1][1]


def test_who_does_not_listen_is_no_fault_of_the_asker(monkeypatch: pytest.MonkeyPatch) -> None:
    speaks("import os; os.close(0); print('{}')", monkeypatch)
    assert torch_process.answer(("m",), "z" * 300_000, what="it") == {}


def test_without_a_temporary_folder_nothing_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(InputError, match=r"^no temporary folder can be made here \(No such file"):
        wiring.run_preflight(tiny_job(tmp_path))
