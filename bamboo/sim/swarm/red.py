"""How a checker says that it is not content.

Rule: it raises, with its name and a sentence; the first one ends the play.
"""


class Red(Exception):
    """A checker is not content."""

    def __init__(self, checker: str, sentence: str) -> None:
        super().__init__(f"{checker}: {sentence}")
        self.checker, self.sentence = checker, sentence
