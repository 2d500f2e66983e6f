"""What an instance's journal says goes to the bucket: all of it, in order, once."""

from pathlib import Path

import pytest

from tests.infra.fakes import Machine

REAL = ("cat", "mkdir", "mv", "rm", "flock", "timeout", "date")
JOURNAL = """
touch journal
for word in "$@"; do case "$word" in --cursor-file=*) cursor=${word#*=} ;; esac; done
seen=$(cat "$cursor" 2>/dev/null || echo 0)
number=0
while read -r line; do
    number=$((number + 1))
    if ((number > seen)); then echo "$line"; fi
done <journal
echo $number >"$cursor"
"""
UPLOAD = '[[ ! -e away ]] || exit 1\nwhile read -r line; do echo "$line" >>bucket; done <"$4"'


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, real=(*REAL, "touch"))
    made.command("journalctl", JOURNAL)
    made.command("aws", UPLOAD)
    return made


def say(machine: Machine, text: str) -> None:
    with (machine.folder / "journal").open("a") as file:
        file.write(f"{text}\n")


def ship(machine: Machine) -> int:
    done = machine.run(
        "ship-logs.sh",
        BAMBOO_BUCKET="b",
        BAMBOO_LOG_RUN="r1",
        BAMBOO_INSTANCE="i-1",
        BAMBOO_SPOOL=str(machine.folder / "spool"),
    )
    return done.returncode


def arrived(machine: Machine) -> list[str]:
    path = machine.folder / "bucket"
    return path.read_text().splitlines() if path.exists() else []


def test_each_line_arrives_once(machine: Machine) -> None:
    say(machine, "one")
    assert ship(machine) == 0
    say(machine, "two")
    assert ship(machine) == 0
    assert ship(machine) == 0
    assert arrived(machine) == ["one", "two"]
    assert len(machine.calls("aws")) == 2
    assert "s3://b/runs/r1/logs/i-1/" in machine.calls("aws")[0]


def test_nothing_new_is_no_upload(machine: Machine) -> None:
    assert ship(machine) == 0
    assert machine.calls("aws") == []


def test_what_could_not_go_up_goes_up_later_and_first(machine: Machine) -> None:
    (machine.folder / "away").touch()
    say(machine, "one")
    assert ship(machine) != 0
    (machine.folder / "away").unlink()
    say(machine, "two")
    assert ship(machine) == 0
    assert sorted(arrived(machine)) == ["one", "two"]


def test_what_an_earlier_call_had_read_is_not_lost(machine: Machine) -> None:
    (machine.folder / "spool").mkdir()
    (machine.folder / "spool" / "new").write_text("read, then cut short\n")
    assert ship(machine) == 0
    assert arrived(machine) == ["read, then cut short"]


def test_a_disk_is_not_filled_where_the_bucket_stays_away(machine: Machine) -> None:
    spool = machine.folder / "spool"
    spool.mkdir()
    for number in range(230):
        (spool / f"20260101T{number:06}-1-b.log").write_text(f"{number}\n")
    assert ship(machine) == 0
    assert arrived(machine) == [str(number) for number in range(30, 230)]
