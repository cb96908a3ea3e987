"""What a script read of tensors without values, and what it was told: said in the report, since it may matter."""

from __future__ import annotations

_MOST = 12


class Readings:
    """Lines of a program that read what a prediction does not have."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}
        self.refused: str | None = None

    def tell(self, line: str, what: str) -> None:
        """Remember that a line read something and was told ``what``; once a line."""
        self._told.setdefault(line, what)

    def tell_number(self, line: str) -> None:
        """Remember that a line read a number, or several."""
        self.tell(line, "reads a number, and is told 1.0; should it decide by it, training may differ")

    def sentences(self) -> list[str]:
        """One a line that read something, in order; the first twelve, and how many more there were."""
        said = [f"Assumed: {line} {what}." for line, what in self._told.items()]
        if len(said) > _MOST:
            said[_MOST:] = [f"Assumed: {len(said) - _MOST} further lines were told a number likewise."]
        return said
