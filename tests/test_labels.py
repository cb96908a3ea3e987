from __future__ import annotations

import doctest
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropeak.profile import labels
from zeropeak.profile.labels import Kind


@given(st.sampled_from(list(Kind)), st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_a_range_name_reads_back(kind: Kind, target: str) -> None:
    assert labels.parse_range_name(labels.range_name(kind, target)) == (kind, target)


@given(st.integers(0, (1 << 22) - 1), st.integers(1, (1 << 40) - 1))
def test_an_event_id_is_a_positive_int64_that_names_its_rank(rank: int, sequence: int) -> None:
    event = labels.event_id(rank, sequence)
    assert 0 < event < 1 << 63
    assert labels.rank_of(event) == rank


@pytest.mark.parametrize(("rank", "sequence"), [(-1, 1), (0, 0), (0, 1 << 40), (1 << 22, 1)])
def test_an_event_id_out_of_range_is_refused(rank: int, sequence: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        labels.event_id(rank, sequence)


@pytest.mark.parametrize("name", ["", "cudaMalloc", "fetching x"])
def test_other_peoples_names_are_not_ours(name: str) -> None:
    assert labels.parse_range_name(name) is None


@pytest.mark.parametrize(
    "module", ["allocator", "allocator.conf", "allocator.replay", "allocator.settings", "labels", "privacy", "text"]
)
def test_examples_in_docstrings_hold(module: str) -> None:
    assert doctest.testmod(import_module(f"zeropeak.profile.{module}"), raise_on_error=True).attempted > 0
