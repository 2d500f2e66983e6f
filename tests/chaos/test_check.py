"""Each checker passes what is right and names what is planted."""

from typing import Any

from bamboo.chaos.check import (
    Verdict,
    check_checkpoints,
    check_end,
    check_faults,
    check_fences,
    check_losses,
    check_orphans,
    check_progress,
    check_protection,
    committed,
    stands,
    struck,
    undone_below,
)


def metric(step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "loss": loss, "loss_hex": loss.hex()}


def test_losses() -> None:
    right = [metric(step, 1.0 / (step + 1)) for step in range(5)]
    assert check_losses(right, steps=5).ok
    assert check_losses([*right, right[3]], steps=5).ok  # the same bits, said twice
    assert "step 2 of 5 has no loss" in check_losses(right[:2] + right[3:], steps=5).finding
    assert "step 3 has two losses" in check_losses([*right, metric(3, 0.5)], steps=5).finding
    assert "ended after 4 steps" in check_losses(right, steps=4).finding
    restored = {"reconfigurations": [{"step": 2, "steps_again": 3}, {"step": 3, "steps_again": 0}]}
    assert undone_below(restored) == 5
    assert check_losses(right, steps=4, undone=5).ok
    beyond = check_losses([*right, metric(5, 0.5)], steps=4, undone=5)
    assert "step 5 has a loss, and the run ended after 4" in beyond.finding
    assert undone_below({"reconfigurations": []}) == 0
    torn = [*right[:4], right[4] | {"loss_hex": "0x1p+0"}]
    assert "is recorded as 0x1p+0" in check_losses(torn, steps=5).finding


def test_the_end() -> None:
    receipt = {"outcome": "stopped", "sentence": "as asked", "step": 7, "final_note": ""}
    assert check_end(receipt, []).ok
    assert check_end(receipt | {"outcome": "done"}, []).ok
    assert "no receipt" in check_end(None, []).finding
    fault = receipt | {"outcome": "fault", "sentence": "no step for 180 s"}
    assert check_end(fault, []).finding == "it ended fault by itself: no step for 180 s"
    assert check_end(receipt | {"final_note": "no final state"}, []).finding == "no final state"
    assert "launcher 77 ended by itself" in check_end(receipt, [77]).finding


def test_orphans() -> None:
    start, end = {"kind": "start", "instance": "i-1"}, {"kind": "end", "instance": "i-1"}

    def finding(
        *cloud: dict[str, str], processes: tuple[int, ...] = (), paths: tuple[str, ...] = ()
    ) -> str:
        return check_orphans(cloud, processes=processes, paths=paths).finding

    assert finding(start, end) == ""
    assert "i-1 still runs" in finding(start)
    assert "ended twice" in finding(start, end, end)
    assert "never began" in finding(end)
    assert "12, 13" in finding(start, end, processes=(12, 13))
    assert "bb-x is left" in finding(start, end, paths=("bb-x",))


def fault(number: int, at_s: float, *, missed: str = "") -> dict[str, Any]:
    return {"kind": "fault", "number": number, "fault": "kill-one", "t": at_s, "missed": missed}


def over(number: int, at_s: float) -> dict[str, Any]:
    return {"kind": "over", "number": number, "t": at_s}


def test_faults_that_struck_nobody_are_found() -> None:
    begin, healing = {"kind": "begin", "t": 90.0}, {"kind": "healing", "t": 150.0}
    drawn_s = (10.0, 20.0, 30.0, 70.0)

    def verdict(*done: dict[str, Any]) -> Verdict:
        return check_faults([begin, *done, healing], drawn_s=drawn_s)

    one, two = fault(1, 100.0), fault(2, 110.0)
    away = fault(3, 120.0, missed="there is nobody")
    assert verdict(one, two, away) == Verdict(
        name="faults", finding="", seen="2 struck of 3 that were due, 1 missed"
    )
    lost = verdict(one, away)
    assert lost.finding.startswith("1 struck of 3 that were due, 1 missed; half of them are to")
    assert lost.finding.endswith("; fault 3: there is nobody")
    assert verdict(away).finding.startswith("0 struck of 3 that were due, 1 missed")
    assert verdict().finding.startswith("0 struck of 3 that were due, 0 missed")
    assert not check_faults([], drawn_s=()).ok, "no fault at all is none that was survived"


def progress(*records: dict[str, Any], steps: tuple[float, ...]) -> str:
    times = [{"kind": "steps", "t": t, "steps": i} for i, t in enumerate(steps)]
    verdict = check_progress(struck(records), committed(times), bound_s=10.0)
    return verdict.finding


def test_progress_counts_from_when_the_last_cause_is_gone() -> None:
    one = (fault(1, 100.0), over(1, 104.0))
    assert progress(*one, steps=(99.0, 113.0)) == ""
    assert "fault 1 (kill-one): no step for 11.0 s" in progress(*one, steps=(99.0, 115.0))
    two = (*one, fault(2, 110.0), over(2, 112.0))
    assert progress(*two, steps=(99.0, 121.0)) == ""
    assert "no step for 11.0 s" in progress(*two, steps=(99.0, 123.0))


def test_a_run_that_never_goes_on_is_found_and_so_is_a_cause_that_stays() -> None:
    assert "no step after it" in progress(fault(1, 100.0), over(1, 104.0), steps=(99.0, 102.0))
    assert "never taken away" in progress(fault(1, 100.0), steps=(99.0, 102.0))
    assert progress(fault(1, 100.0, missed="nobody"), steps=(99.0,)) == ""


def stood(at_s: float, phase: str = "running", under_way: int = 0) -> dict[str, Any]:
    return {"kind": "stands", "t": at_s, "phase": phase, "under_way": under_way}


def protection(*records: dict[str, Any]) -> str:
    told = struck(records), stands(records)
    return check_protection(*told, seen_s=3.0, bound_s=10.0).finding


def test_protection_must_come_back_after_the_last_fault() -> None:
    one = (stood(50.0), fault(1, 100.0), over(1, 104.0))
    assert protection(*one) == ""  # it took nothing
    hit = (*one, stood(100.1, "failing_over", 1), stood(100.3, "degraded"))
    assert "not all copies came back" in protection(*hit)
    assert "degraded, 0 changes under way" in protection(*hit)
    sent = (*hit, stood(112.0, "degraded", 1))
    assert "degraded, 1 changes under way" in protection(*sent)
    assert protection(*sent, stood(114.0)) == ""
    assert "after 10.5 s, the bound is 10 s" in protection(*sent, stood(114.5))
    assert "running, 1 changes" in protection(*hit, stood(112.0, "running", 1))
    assert "nobody saw" in protection(*one[1:])
    assert protection(stood(50.0, "degraded")) == ""  # nothing was done to it


def test_protection_before_the_loss_was_seen_is_none() -> None:
    one = (stood(50.0), fault(1, 100.0), over(1, 100.0))
    assert "not all copies" in protection(*one, stood(101.5, "degraded"))
    assert protection(*one, stood(101.5, "degraded"), stood(102.0)) == ""
    again = (fault(2, 110.0), over(2, 110.0), stood(110.2, "degraded"))
    assert "not all copies" in protection(*one, stood(104.0), *again)


def decided(version: int, **event: str) -> dict[str, Any]:
    return {"version": version, "event": event, "effects": [], "reason": "", "now_s": 0.0}


def test_fences() -> None:
    lost = decided(1, kind="PeerLost", node="n1", reporter="n2")
    begin = {"version": 0, "state": {}}
    right = [begin, lost, decided(2, kind="NodeFinished", node="n2")]
    assert check_fences(right).ok
    assert "version 1 is not in the log" in check_fences([begin, right[2]]).finding
    ghost = [begin, lost, decided(2, kind="NodeFinished", node="n1")]
    assert "NodeFinished of n1, which is gone" in check_fences(ghost).finding
    accuser = [begin, lost, decided(2, kind="PeerLost", node="n3", reporter="n1")]
    assert "PeerLost of n1, which is gone" in check_fences(accuser).finding
    left = decided(1, kind="NodeLeft", node="n1", reason="no room")
    assert check_fences([begin, left, right[2]]).ok
    assert "NodeFinished of n1, which is gone" in check_fences([begin, left, ghost[2]]).finding
    twice = check_fences([begin, lost, left | {"version": 2}])
    assert "NodeLeft of n1, which is gone" in twice.finding


def saved(step: int) -> dict[str, Any]:
    return {"event": {"kind": "ShardSaved", "step": step}}


def done(step: int) -> dict[str, Any]:
    return {"event": {"kind": "CheckpointDone", "step": step}}


def test_a_checkpoint_that_nobody_speaks_of_again_is_found() -> None:
    begin = {"state": {}}

    def verdict(*decisions: dict[str, Any]) -> Verdict:
        return check_checkpoints([begin, *decisions], [])

    assert verdict(saved(10), done(10), saved(20)).seen.startswith("1 complete, 0 failed, 0 let go")
    silent = verdict(done(10), saved(20), saved(30), done(30))
    assert silent.finding.startswith("the checkpoint of step 20 was begun, and nobody said")
    assert verdict(done(10), saved(20), saved(30), done(30), done(20)).ok
    failed = {"event": {"kind": "CheckpointFailed", "step": 20}}
    assert verdict(saved(20), failed, saved(20), saved(30), done(30)).seen.startswith(
        "1 complete, 1 failed, 0 let go"
    )
    lost = decided(1, kind="PeerLost", node="n1")
    about = verdict(done(10), lost, saved(20), saved(30), done(30))
    assert about.ok
    assert about.seen.endswith(" failed, 1 let go with a slot or for later ones")
    assert not verdict(lost, done(10), saved(20), saved(30), done(30)).ok, "it was over before"
    many = [saved(step) for step in (20, 30, 40, 50, 60)]
    assert verdict(*many, done(60), done(50), done(40), done(30)).ok
    few = verdict(*many[:4], done(50), done(40), done(30))
    assert few.finding.startswith("the checkpoint of step 20 ")


def test_what_is_left_of_an_unfinished_file_is_found_once_nobody_can_finish_it() -> None:
    stray = "step-00000010/gen-000001/.aside-1f"

    def finding(*names: str, steps: tuple[int, ...] = (10, 20, 30)) -> str:
        return check_checkpoints([done(step) for step in steps], names).finding

    assert finding(stray, "step-00000030/manifest.json") == f"{stray} is left, 1 in all"
    assert finding(stray, "step-00000010/manifest.json") == "", "it goes with its checkpoint"
    assert finding(stray, steps=(10, 20)) == "", "who was to delete it may have ended"
    assert finding("step-00000010/gen-000001/stage-00.safetensors") == ""
    constant = "constant/.aside-2a"
    assert finding(constant) == f"{constant} is left, 1 in all"
    assert finding(constant, steps=(10, 20)) == ""
