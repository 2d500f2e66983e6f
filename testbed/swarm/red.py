"""The exception by which a checker fails.

Rule: a checker raises it, with its name and a sentence; the first one ends the play.
"""


class Red(Exception):
    """A checker has failed."""

    def __init__(self, checker: str, sentence: str) -> None:
        super().__init__(f"{checker}: {sentence}")
        self.checker, self.sentence = checker, sentence
