"""What a benchmark says of what was to be reached: a figure beside its limit. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One figure, and its limit."""

    about: str
    found: float
    limit: float
    at_most: bool = True

    @property
    def holds(self) -> bool:
        """Whether the limit is kept."""
        return self.found <= self.limit if self.at_most else self.found >= self.limit

    def line(self) -> str:
        """For people."""
        bound = "at most" if self.at_most else "at least"
        verdict = "reached" if self.holds else "NOT REACHED"
        return f"{self.about:56} {self.found:8.3f}  {bound} {self.limit:.3f}  {verdict}"
