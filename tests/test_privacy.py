"""What people share tells nobody whose machine it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zeropeak.profile import manifest
from zeropeak.profile.options import Options
from zeropeak.profile.planning import make_plan
from zeropeak.profile.privacy import scrubbed, without_folders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ann/z3.json", "…/z3.json"),
        ("~/z3.json", "…/z3.json"),
        ("--data=/srv/ann/x.jsonl", "--data=…/x.jsonl"),
        ("FileNotFoundError: no '/home/ann/a b/c.json'", "FileNotFoundError: no '…/a b/c.json'"),
        ("configs/z3.json 1/2 of it", "configs/z3.json 1/2 of it"),
        ("a 1e9/s rate", "a 1e9/s rate"),
    ],
)
def test_folders_are_cut_and_the_rest_stays(text: str, shown: str) -> None:
    assert "ann" not in without_folders(text)
    if " b/" not in text:
        assert without_folders(text) == shown


def test_the_manifest_is_scrubbed_whatever_goes_into_it(tmp_path: Path) -> None:
    plan = make_plan(
        Options("stage3", settings=('zero_optimization.offload_param={"nvme_path": "/home/ann/nvme"}',)), "torch", []
    )
    manifest.write(tmp_path, manifest.new("run", 1, ["zeropeak", "torch", "/home/ann/z3.json"], plan, {}))
    manifest.update(tmp_path, failure={"message": "OSError: /home/ann/full"}, notes=["see /home/ann/log"])
    assert "ann" not in (tmp_path / "run.json").read_text()


def test_json_values_keep_their_shape() -> None:
    assert scrubbed({"a": [1, "/x/y"], "b": None}) == {"a": [1, "…/y"], "b": None}
