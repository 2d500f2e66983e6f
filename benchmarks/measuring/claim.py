"""A benchmark's claims: a figure and its limit each. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One figure, and its limit."""

    about: str
    found: float
    limit: float
    at_most: bool = True
    interval: tuple[float, float] | None = None
    """Interval of the figure, where there are enough values for one."""

    @property
    def holds(self) -> bool:
        """Whether the limit is kept."""
        return self._keeps(self.found)

    def _keeps(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def line(self) -> str:
        """The claim as a line for people."""
        bound = "at most" if self.at_most else "at least"
        verdict = "reached" if self.holds else "NOT REACHED"
        between = ""
        if self.interval is not None:
            low, high = self.interval
            between = f" ({low:.3f} to {high:.3f})"
            if self._keeps(low) != self._keeps(high):
                verdict += ", but the interval lies across the limit"
        return f"{self.about:56} {self.found:8.3f}{between}  {bound} {self.limit:.3f}  {verdict}"
