"""The schema documents itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zeropeak.parse import blocks, schema
from zeropeak.parse.snapshot import lives

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).parents[1] / "docs" / "schema.md"


def test_every_column_and_table_says_what_it_is() -> None:
    for table in schema.TABLES:
        assert table.doc
        for column in table.columns:
            assert column.doc, f"{table.name}.{column.name}"
        assert set(table.order) <= {column.name for column in table.columns}


def test_times_and_sizes_are_int64() -> None:
    for table in schema.TABLES:
        for column in table.columns:
            if column.unit:
                assert column.type == schema.INT, f"{table.name}.{column.name}"


def test_every_mend_has_its_meaning() -> None:
    assert set(schema.MENDS) == {word for word in (*blocks.MENDS, *lives.MENDS) if word}


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    schema.main()
    assert PAGE.read_text() == capsys.readouterr().out, "run: python -m zeropeak.parse.schema > docs/schema.md"
