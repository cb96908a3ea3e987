"""What a finding is, and how findings are ordered and written."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.labels import Basis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Basis", "Evidence", "Expected", "Finding", "Verdict", "ordered", "to_json"]

FINDINGS_SCHEMA: Final = 1
"""Version of findings.json."""


class Verdict(StrEnum):
    """How sure a finding is."""

    CONFIRMED = "confirmed"
    """Measured; the evidence rows are attached."""
    PREDICTED = "predicted"
    """As confirmed, of a simulated run."""
    SUSPECTED = "suspected"
    """Consistent with the data, one thing unmeasured; the advice names it."""
    UNKNOWN = "unknown"
    """The data does not carry a verdict; the advice says which capture would."""
    RULED_OUT = "ruled_out"
    """Measured, and it is not so."""
    NOT_APPLICABLE = "not_applicable"
    """Cannot occur in this setting."""


@dataclass(frozen=True)
class Evidence:
    """Rows of a table that carry a finding.

    Attributes:
        table: table of docs/schema.md.
        where: column values that select the rows, all of them.
        rows: a few of them, as they are in the table.
        what: what they show, in a few words.
    """

    table: str
    where: dict[str, Any]
    rows: Sequence[dict[str, Any]]
    what: str

    def to_json(self) -> dict[str, Any]:
        """JSON object."""
        return {"table": self.table, "what": self.what, "where": self.where, "rows": list(self.rows)}


@dataclass(frozen=True)
class Expected:
    """What the advice does to allocated memory at one point, computed from the run's own blocks and curve.

    Attributes:
        at: ``peak`` (of the run), or a mark: ``init``, ``forward``, ``backward``, ``step``.
        step: step of the mark (-1 for init); None for the peak.
        now_bytes: as it is.
        then_bytes: with the knob turned.
        sampled: the curve is of counters read now and then, so a peak's moment is known to the sample only.
    """

    at: str
    step: int | None
    now_bytes: int
    then_bytes: int
    sampled: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Finding:
    """One finding on one rank.

    Attributes:
        bytes: its size; None when not measured or not applicable.
        step: step in which it was measured.
        cause: stable identifier. Established when ``holder`` is given, else the likely one; None when open.
        holder: what keeps the bytes: autograd node and saved attribute of most of them.
        knob: config key that changes it.
        value: what to set the knob to, as in JSON; None when the advice is not one setting.
        expected: what that does, point by point; empty when it cannot be computed.
        advice: what to do, and what it saves; one or two sentences.
        headline: the finding in one sentence, for page 1.
        allocated_bytes: all that was allocated where it was measured, to compare with; not in findings.json.
        modules: modules concerned, largest share first.
    """

    id: str
    verdict: Verdict
    basis: Basis
    rank: int
    bytes: int | None = None
    step: int | None = None
    cause: str | None = None
    holder: str | None = None
    knob: str | None = None
    value: bool | int | float | str | None = None
    expected: Sequence[Expected] = ()
    advice: str | None = None
    evidence: Sequence[Evidence] = ()
    headline: str = ""
    modules: Sequence[str] = ()
    notes: Sequence[str] = field(default=())
    allocated_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON object of findings.json; every key is always there."""
        return {
            "id": self.id,
            "verdict": self.verdict.value,
            "basis": self.basis.value,
            "bytes": self.bytes,
            "rank": self.rank,
            "step": self.step,
            "cause": self.cause,
            "holder": self.holder,
            "knob": self.knob,
            "value": self.value,
            "expected": [one.to_json() for one in self.expected],
            "advice": self.advice,
            "evidence": [one.to_json() for one in self.evidence],
        }


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Surest verdict first, then most bytes, then by id and rank."""
    verdicts = list(Verdict)
    return sorted(findings, key=lambda f: (verdicts.index(f.verdict), -(f.bytes or 0), f.id, f.rank))


def to_json(run: str, findings: Iterable[Finding], basis: str = Basis.MEASURED) -> dict[str, Any]:
    """The content of findings.json; ``basis`` is the run's."""
    return {
        "schema": FINDINGS_SCHEMA,
        "run": run,
        "basis": str(basis),
        "findings": [finding.to_json() for finding in ordered(findings)],
    }
