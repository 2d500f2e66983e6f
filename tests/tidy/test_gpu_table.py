"""The figures of GPUs in docs/gpu.md are those of the results that are checked in."""

from tests.tidy.gpu_table import PAGE, with_table


def test_the_page_has_the_figures_that_were_kept() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "run: python -m tests.tidy.gpu_table"
