"""The comparison in words: the verdict, what each pair differs by, and in which settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports.answer import Answer
from zeropeak.reports.compare.moment import FIRST_FORWARD, MOMENTS, PEAK
from zeropeak.reports.compare.settings import shown
from zeropeak.reports.compare.trial import TOLERANCE, Outcome
from zeropeak.reports.figures.style import category_label
from zeropeak.reports.paragraph import Paragraph
from zeropeak.reports.selection import all_ranks
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeropeak.reports.compare.comparison import Comparison, Pair
    from zeropeak.reports.compare.overlap import Overlap
    from zeropeak.reports.compare.trial import Point, Trial
    from zeropeak.reports.compare.waterfall import Waterfall

_MOST_PARTS: Final = 4
_SAME: Final = "the same"
_MOST_SETTINGS: Final = 5
_OPENING: Final = {
    Outcome.CONFIRMED: "Cause confirmed",
    Outcome.PREDICTED: "Cause predicted (a run was simulated)",
    Outcome.SUSPECTED: "Cause suspected, more was saved than predicted",
    Outcome.REFUTED: "Cause refuted",
}


def answer(comparison: Comparison) -> Answer:
    """Page 1; strong paragraphs and the headline go to the terminal too."""
    told = [trial for trial in comparison.trials if trial.outcome is not Outcome.UNKNOWN]
    paragraphs = [Paragraph("Verdict", verdict(trial, comparison.common), strong=True) for trial in told]
    open_ = [trial for trial in comparison.trials if trial.outcome is Outcome.UNKNOWN]
    if not told:
        paragraphs.append(Paragraph("Verdict", _no_verdict(comparison, open_), strong=True))
    else:
        paragraphs += [Paragraph("Open", _untold(trial)) for trial in open_]
    for pair in comparison.pairs:
        paragraphs.append(Paragraph("Difference", _difference(pair, comparison.common), strong=True))
        if in_what := _settings(pair):
            paragraphs.append(Paragraph("Settings", in_what))
    return Answer(_headline(comparison, told), comparison.common.lead, paragraphs)


def _headline(comparison: Comparison, told: Sequence[Trial]) -> str:
    if told:
        trial = told[0]
        point = _first(trial)
        knob = trial.knob.rpartition(".")[2]
        return (
            f"{_OPENING[trial.outcome]}: with {knob} {shown(trial.value)}, {trial.after.title} holds "
            f"{more(-(point.saved_bytes or 0))} {point.moment.name} than {trial.before.title}; "
            f"{more(-point.predicted_bytes)} was predicted"
        )
    first, last = comparison.sides[0], comparison.sides[-1]
    pair = next(pair for pair in comparison.pairs if pair.before is first and pair.after is last)
    return _change(pair, comparison.common)


def verdict(trial: Trial, common: Overlap) -> str:
    """What was predicted, what came, and how far off the prediction was."""
    lead = _first(trial).rank
    points = [point for point in trial.told if point.rank == lead]
    text = (
        f"{_OPENING[trial.outcome]}: {trial.finding} in {trial.before.title}. With {trial.knob} {shown(trial.value)} "
        f"({trial.after.title}, alike in every other setting) allocated memory {_and([_came(p) for p in points])}."
    )
    ranks = sorted({point.rank for point in trial.told})
    if len(ranks) > 1:
        off = percent_off(trial.worst or 0.0)
        text += f" That is rank {lead}; over {all_ranks(ranks, len(common.ranks))} the prediction is at most {off} off."
    if trial.outcome is Outcome.REFUTED:
        text += f" Less came than predicted, by more than {TOLERANCE:.0%}: something else holds these bytes."
    elif trial.outcome is Outcome.SUSPECTED:
        text += " So the knob moves something besides what the finding names."
    untold = {point.untold for point in trial.points if point.untold}
    return text + "".join(f" Not judged: {reason}." for reason in sorted(untold))


def _came(point: Point) -> str:
    saved = point.saved_bytes or 0
    change = "does not change" if not saved else f"{'falls' if saved > 0 else 'grows'} by {size(abs(saved))}"
    return (
        f"{change} {point.moment.name} ({size(point.before_bytes)} to {size(point.after_bytes)}; "
        f"{more(-point.predicted_bytes)} predicted, {percent_off(point.error or 0.0)} off)"
    )


def _and(parts: Sequence[str]) -> str:
    """A list for people.

    >>> _and(["a"]), _and(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def percent_off(error: float) -> str:
    """An error for people, without its sign.

    >>> percent_off(-0.005), percent_off(0.0), percent_off(0.00001), percent_off(-1)
    ('0.50 %', '0 %', 'less than 0.01 %', '100 %')
    """
    share = abs(100 * error)
    if 0 < share < 0.01:
        return "less than 0.01 %"
    return f"{share:.2f} %" if 0 < share < 10 else f"{share:.0f} %"


def _first(trial: Trial) -> Point:
    """The point that is named: the largest prediction."""
    return max(trial.told, key=lambda point: (abs(point.predicted_bytes), -point.rank))


def _no_verdict(comparison: Comparison, open_: Iterable[Trial]) -> str:
    said = [_untold(trial) for trial in open_]
    if said:
        return " ".join(said)
    if all(not pair.differences.settings and not pair.differences.unknown for pair in comparison.pairs):
        return "None: the runs do not differ in any setting, so no knob was turned."
    return (
        "None: no finding of these runs names a knob that another of them turns. `zeropeak verify RUN` turns the one "
        "that a run's report advises."
    )


def _untold(trial: Trial) -> str:
    return (
        f"{trial.finding} in {trial.before.title} names {trial.knob}, which {trial.after.title} turns, but whether "
        f"its saving came cannot be told: {trial.reason}."
    )


def _difference(pair: Pair, common: Overlap) -> str:
    """How much more or less the second run holds at each moment, and what that is."""
    falls = pair.of_rank(common.lead)
    told = next((fall for wanted in (FIRST_FORWARD, PEAK) for fall in falls if fall.moment == wanted), None)
    text = _change(pair, common)
    return f"{text} {_parts(told)}" if told is not None and told.largest else text


def _change(pair: Pair, common: Overlap) -> str:
    changes = []
    for moment in MOMENTS if common.lead is not None else ():
        one, other = (common.reading(side, common.lead or 0, moment) for side in (pair.before, pair.after))
        if one is not None and other is not None:
            unsure = " or thereabouts (cut)" if one.at_least or other.at_least else ""
            changes.append((more(other.size_bytes - one.size_bytes) + unsure, moment.name))
    if not changes:
        return f"At no moment do both {pair.before.title} and {pair.after.title} say what they held."
    if {much for much, _ in changes} == {_SAME}:
        when = _and([when for _, when in changes])
        return f"{pair.after.title} holds the same as {pair.before.title} {when} (rank {common.lead})."
    what = _and([f"{much} {when}" for much, when in changes])
    return f"{pair.after.title} holds, against {pair.before.title}, {what} (rank {common.lead})."


def _parts(fall: Waterfall) -> str:
    largest = fall.largest
    named = ", ".join(f"{signed(size_bytes)} {category_label(name)}" for name, size_bytes in largest[:_MOST_PARTS])
    rest = sum(size_bytes for _, size_bytes in largest[_MOST_PARTS:])
    others = f", {signed(rest)} in {len(largest) - _MOST_PARTS} more" if len(largest) > _MOST_PARTS else ""
    return f"{fall.moment.name.capitalize()}: {named}{others}; together {signed(fall.difference_bytes)}."


def more(size_bytes: int) -> str:
    """A difference for people.

    >>> more(1024), more(-1024), more(0)
    ('1.00 KiB more', '1.00 KiB less', 'the same')
    """
    if not size_bytes:
        return _SAME
    return f"{size(abs(size_bytes))} {'more' if size_bytes > 0 else 'less'}"


def signed(size_bytes: int) -> str:
    """With its sign, a real minus.

    >>> signed(1024), signed(0)
    ('+1.00 KiB', '0 B')
    """
    return f"+{size(size_bytes)}" if size_bytes > 0 else size(size_bytes).replace("-", "\N{MINUS SIGN}")


def _settings(pair: Pair) -> str:
    """In what the two differ; empty when that is the knob of a trial alone, which the verdict says."""
    found, unknown = pair.differences.settings, pair.differences.unknown
    names = f"{pair.before.title} and {pair.after.title}"
    if not found and not unknown:
        return f"{names} differ in no setting that decides memory."
    shown_ = [one.words() for one in found[:_MOST_SETTINGS]]
    if len(found) > _MOST_SETTINGS:
        shown_.append(f"and {len(found) - _MOST_SETTINGS} more (the table of settings lists them)")
    text = f"{names} differ in {', '.join(shown_)}." if shown_ else ""
    return f"{text} Not known whether they differ in {', '.join(unknown)}.".strip() if unknown else text
