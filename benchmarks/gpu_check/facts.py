"""What the design takes for granted of a card: its context, first kernels, copies, and its end."""

from benchmarks.gpu_check.part import Check, Group, median, play

FRESH = 3
NO_CARD = "there is no card"
GIB = 2**30


def first_uses(check: Check) -> None:
    """A fresh process: until torch is loaded, the card is open, and kernels have run."""

    def work() -> None:
        fresh = 1 if check.small else FRESH
        found = [check.measure("context", most_s=120.0, bf16=check.cuda) for _ in range(fresh)]
        for name, about in (
            ("import_s", "import of torch"),
            ("open_s", "context"),
            ("first_product_s", "first matrix product"),
            ("second_product_s", "the same again"),
            ("first_attention_s", "first attention"),
            ("first_backward_s", "first backward of attention"),
        ):
            check.board.add(about, 1e3 * median([one[name] for one in found]), "ms")

    check.board.attempt("context", work, needs_s=10.0)


def copies(check: Check) -> None:
    """The speed of copies between card and host."""

    def work() -> None:
        sizes = [1, 4] if check.small else [1, 8, 64, 512]
        found = check.measure("ceiling", most_s=180.0, mib=sizes)
        gib = found["pinned_bytes"] / GIB
        check.board.add("pinning, a GiB", 1e3 * found["pin_s"] / gib, "ms")
        for path, by_size in found["gb_per_s"].items():
            for mib, speed in by_size.items():
                check.board.add(f"copy {path}, {mib} MiB", speed, "GB/s")

    check.board.attempt("copies", work, needs_s=15.0)


def kills(check: Check) -> None:
    """From SIGKILL to end-of-file and to free memory, with and without pinned memory."""
    cases = ((0.0, 0.1),) if check.small else ((0.0, 0.0), (0.0, 4.0), (8.0, 4.0))
    for pinned, card in cases:
        case = f"{pinned:g} GB pinned, {card:g} GB on the card"
        name = f"SIGKILL to end-of-file, {case}, most of {_repeats(check)}"

        def work(
            pinned: float = pinned, card: float = card, case: str = case, name: str = name
        ) -> None:
            found = check.measure(
                "sigkill",
                most_s=150.0,
                pinned_gib=pinned,
                card_gib=card,
                repeats=_repeats(check),
            )
            check.board.add(name, 1e3 * max(found["eof_s"]), "ms")
            about = f"SIGKILL to free memory of the card, {case}, most"
            if found["free_s"]:
                check.board.add(about, 1e3 * max(found["free_s"]), "ms")
                taken = median(found["context_bytes"]) / 2**20
                check.board.add(f"memory of the card beyond what is asked, {case}", taken, "MiB")
            else:
                check.board.not_run(about, NO_CARD)

        check.board.attempt(name, work, needs_s=20.0)


def _repeats(check: Check) -> int:
    return 1 if check.small else 3


GROUPS: dict[str, Group] = {"context": first_uses, "copies": copies, "kills": kills}


def run(check: Check) -> None:
    """The part."""
    play(check, GROUPS)
