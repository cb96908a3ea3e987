"""Why a birth or an end in the memory tables is ours and not the source's."""

from __future__ import annotations

from typing import Final

MENDS: Final = {
    "address-reused": "its free was never reported, and its address was allocated again: it ends there, the true end "
    "is earlier (kineto, snapshot)",
    "storage-ended": "its free was never reported, and the event log saw the tensor in it die: it ends there, "
    "exactly (kineto)",
    "collective-ended": "its free was never reported; it was born within a gather or reduction and never registered, "
    "so it is a copy that the collective made for itself: it ends with that (kineto)",
    "gone-at-dump": "the history never frees it, and it is not in the dump at the history's end: it ended in a gap "
    "of the history and is put at the dump (snapshot)",
    "born-unseen": "it is in the dump, and the history, in which other blocks lay there, has no allocation of it: it "
    "was born in a gap and is put at the dump (snapshot)",
}
"""Words of the columns ``mend``; null for what is as the source recorded it."""
