"""Plays tests of a copy of the tree, again and again, each time in a fork of a process that has
pytest and hypothesis imported, and nothing of the copy.

    cd COPY; python core_tests.py tests/core

Rule: one request on a line of stdin, one answer on a line of stdout, both JSON. The request `{}`
plays all tests and answers with `tests`: the CPU seconds of each and the functions that it runs, as
`[file, first line]`, or null for all. A request `{"tests": {name: CPU seconds}}` plays these, in
this order, up to the first that fails or takes longer; the answer names it in `failed`, "" for
none. Wall time counts for nothing, so a busy machine kills no mutant.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Generator, Mapping
from types import CodeType, FrameType
from typing import Any

import hypothesis
import hypothesis.stateful
import pytest

MEMORY_BYTES = 4 << 30
"""A mutant that makes a list without end fails soon, and takes no memory from others."""
TRACED_S = 1.0
"""A test that takes more CPU time than this is taken to run all functions."""


class Play:
    """A plugin of pytest: which tests are played, in which order, and what they ran."""

    def __init__(self, limits_s: Mapping[str, float] | None, writer: int) -> None:
        self.limits_s, self.writer = limits_s, writer
        self.copy = os.getcwd() + "/"
        self.is_long = False
        self.tests: dict[str, Any] = {}
        self.failed = ""
        self.begun = ""

    def pytest_sessionstart(self) -> None:
        """A failure is enough: nobody asks for a smaller one."""
        known = hypothesis.settings.get_profile("deterministic")
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", known, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.limits_s is not None:
            by_name = {item.nodeid: item for item in items}
            items[:] = [by_name[name] for name in self.limits_s if name in by_name]
            if len(items) < len(self.limits_s):
                self.failed = "collection"

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        self.begun = item.nodeid
        seen: set[CodeType] = set()
        if self.limits_s is None:
            self._forget()
            signal.setitimer(signal.ITIMER_PROF, TRACED_S)
            sys.settrace(lambda frame, event, given: seen.add(frame.f_code))
        else:
            signal.setitimer(signal.ITIMER_PROF, self.limits_s[item.nodeid])
        begin_s = time.process_time()
        yield
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        taken_s = time.process_time() - begin_s
        ours = [code for code in seen if code.co_filename.startswith(self.copy)]
        reached = [(code.co_filename[len(self.copy) :], code.co_firstlineno) for code in ours]
        self.tests[item.nodeid] = (taken_s, None if self.is_long else reached)
        self.is_long = False

    def over(self, number: int, frame: FrameType | None) -> None:
        """So much CPU time is over, of the trace or of a test."""
        if self.limits_s is None:
            sys.settrace(None)
            self.is_long = True
        else:
            answered(self.writer, {"failed": self.begun})
            os._exit(0)

    def _forget(self) -> None:
        """What was cached by an earlier test is run by this one too."""
        for name, module in list(sys.modules.items()):
            if name.startswith("bamboo."):
                for value in list(vars(module).values()):
                    if callable(forget := getattr(value, "cache_clear", None)):
                        forget()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def played(request: Mapping[str, Any], folder: str, writer: int) -> None:
    """In the fork: play what is asked for, and write the answer."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    sys.path.insert(0, os.getcwd())
    play = Play(request.get("tests"), writer)
    signal.signal(signal.SIGPROF, play.over)
    words = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported already
    status = pytest.main([folder, *words], plugins=[play])
    failed = play.failed or ("" if status == pytest.ExitCode.OK else "collection")
    answered(writer, {"failed": failed, "tests": play.tests if "tests" not in request else {}})


def answered(writer: int, answer: Mapping[str, Any]) -> None:
    """Write an answer to the pipe; it may be longer than one write takes."""
    raw = json.dumps(answer).encode()
    while raw:
        raw = raw[os.write(writer, raw) :]


def main() -> None:
    for line in sys.stdin:
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(reader)
            played(json.loads(line), sys.argv[1], writer)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answers:
            answer = answers.read()
        os.waitpid(pid, 0)
        print(answer or json.dumps({"failed": "the process ended"}), flush=True)


if __name__ == "__main__":
    main()
