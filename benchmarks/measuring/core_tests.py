"""Plays tests of a copy of the tree, again and again, each time in a fork of a process in which all
of them are collected.

    cd COPY; python core_tests.py tests/core

Rule: one request on a line of stdin, one answer on a line of stdout, both JSON. The request
`{"most_s": CPU seconds}` plays all tests, each for so long at most, and answers with `tests`: the
CPU seconds of each that came to its end, and the functions that it runs, as `[file, first line]`,
or null for all. A request `{"tests": {name: CPU seconds}}` plays these, in this order, up to the
first that fails or takes longer; the answer names it in `failed`, "" for none. Wall time counts for
nothing, so a busy machine kills no mutant. With `mutant`, a file, the first line of a function and
the file's mutated text, the function has its mutated code.
"""

import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any

import hypothesis
import pytest

MEMORY_BYTES = 4 << 30
"""A mutant that makes a list without end fails soon, and takes no memory from others."""
TRACED_S = 1.0
"""A test that takes more CPU time than this is taken to run all functions."""


class TooLong(BaseException):
    """A test is ended; hypothesis catches no such exception."""


class Play:
    """A plugin of pytest that collects all tests and then plays what it is asked to."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.copy = os.getcwd() + "/"
        self.limits_s: Mapping[str, float] | None = None
        self.most_s = 0.0
        self.tests: dict[str, Any] = {}
        self.begun = self.failed = ""
        self.is_long = False

    def pytest_sessionstart(self) -> None:
        """A failure is enough: nobody asks for a smaller one."""
        known = hypothesis.settings.get_profile("deterministic")
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", known, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Play each request in a fork of its own."""
        for line in sys.stdin:
            if session.testsfailed:
                self.answer({"failed": "the collection of the tests"})
            elif (pid := os.fork()) == 0:
                try:
                    self.play(session, json.loads(line))
                finally:
                    os._exit(1)
            elif os.waitpid(pid, 0)[1]:
                self.answer({"failed": "the process ended"})
        return True

    def play(self, session: pytest.Session, request: Mapping[str, Any]) -> None:
        """In the fork: play the tests of a request, and answer."""
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        signal.signal(signal.SIGPROF, self.over)
        if "mutant" in request:
            mutate(self.copy, *request["mutant"])
        self.limits_s, self.most_s = request.get("tests"), request.get("most_s", 0.0)
        items = {item.nodeid: item for item in session.items}
        names = list(items) if self.limits_s is None else list(self.limits_s)
        for name, after in zip(names, [*names[1:], None], strict=True):
            then = None if after is None else items[after]
            session.config.hook.pytest_runtest_protocol(item=items[name], nextitem=then)
            if self.failed:
                break
        left_out = [name for name in items if name not in self.tests]
        calm = {"tests": self.tests, "left_out": left_out} if self.limits_s is None else {}
        self.answer({"failed": self.failed, **calm})
        os._exit(0)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any]:
        self.begun = item.nodeid
        seen: set[CodeType] = set()
        if self.limits_s is None:
            forget()
            signal.setitimer(signal.ITIMER_PROF, min(TRACED_S, self.most_s))
            sys.settrace(lambda frame, event, given: seen.add(frame.f_code))
        else:
            signal.setitimer(signal.ITIMER_PROF, self.limits_s[item.nodeid])
        begin_s = time.process_time()
        outcome = yield
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        taken_s = time.process_time() - begin_s
        ours = [code for code in seen if code.co_filename.startswith(self.copy)]
        reached = [(code.co_filename[len(self.copy) :], code.co_firstlineno) for code in ours]
        if not self.begun:
            outcome.force_result(None)
        else:
            self.tests[item.nodeid] = (taken_s, None if self.is_long else reached)
        self.is_long = False

    def over(self, number: int, frame: FrameType | None) -> None:
        """So much CPU time is over, of the trace or of a test."""
        if self.limits_s is None:
            sys.settrace(None)
            if self.is_long or self.most_s <= TRACED_S:
                self.begun = ""
                raise TooLong
            self.is_long = True
            signal.setitimer(signal.ITIMER_PROF, self.most_s - TRACED_S)
        else:
            self.answer({"failed": self.begun})
            os._exit(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.begun and not self.failed:  # else it took too long
            self.failed = report.nodeid

    def answer(self, answer: Mapping[str, Any]) -> None:
        """Write an answer; it may be longer than one write takes."""
        raw = json.dumps(answer).encode() + b"\n"
        while raw:
            raw = raw[os.write(self.answers, raw) :]


def forget() -> None:
    """Clear all caches: what one test computed, the next one computes too."""
    for name, module in list(sys.modules.items()):
        if name.startswith("bamboo."):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


def mutate(copy: str, path: str, line: int, text: str) -> None:
    """Give a function the code that it has in a mutated text.

    Raises RuntimeError when there is no such function.
    """
    gc.unfreeze()  # what is frozen is not listed
    new = {
        code.co_qualname: code
        for code in codes(compile(text, copy + path, "exec"))
        if code.co_firstlineno == line
    }
    found = [
        one
        for one in gc.get_objects()
        if isinstance(one, FunctionType)
        and (one.__code__.co_filename, one.__code__.co_firstlineno) == (copy + path, line)
        and one.__code__.co_qualname in new
    ]
    if not found:
        raise RuntimeError(f"{path}:{line} is no function")
    for function in found:
        function.__code__ = new[function.__code__.co_qualname]
    forget()


def codes(code: CodeType) -> Iterator[CodeType]:
    """All code objects within one."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from codes(one)


def main() -> None:
    answers = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    sys.path.insert(0, os.getcwd())
    words = ["-s", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported already
    status = pytest.main([sys.argv[1], *words], plugins=[play := Play(answers)])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        play.answer({"failed": "the collection of the tests"})


if __name__ == "__main__":
    main()
