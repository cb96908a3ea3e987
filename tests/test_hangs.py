"""Which rank hung, from how each ended and what they printed."""

from __future__ import annotations

import pytest

from zeropeak.profile.hangs import hung_rank


def end(ended: str | None, error: str | None = None) -> dict[str, str | None]:
    return {"ended": ended, "error": error}


WAITED = end("failed", "RuntimeError: Timed out waiting 8000ms for recv operation to complete")
LEFT = end("failed", "RuntimeError: Connection closed by peer")


@pytest.mark.parametrize(
    ("ends", "printed", "hung"),
    [
        ([WAITED, end(None), LEFT], "", 1),
        ([WAITED, end("interrupted"), WAITED], "", 1),
        ([end(None), end(None), end(None)], "[Rank 0] Watchdog caught collective operation timeout: x\n"
         "[rank2]:[E1201] [PG ID 1 Rank 2] Watchdog caught collective operation timeout: x\n", 1),
        ([WAITED, WAITED, WAITED], "", None),
        ([LEFT, end(None), LEFT], "", None),
        ([WAITED, end(None), end(None)], "", None),
    ],
)  # fmt: skip
def test_a_rank_hung_when_others_gave_up_waiting_and_it_was_ended(
    ends: list[dict[str, str | None]], printed: str, hung: int | None
) -> None:
    found = hung_rank(dict(enumerate(ends)), printed)
    assert (found and found[0]) == hung
