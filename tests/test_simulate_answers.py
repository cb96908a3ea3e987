from __future__ import annotations

from typing import TYPE_CHECKING

from zeropeak.profile.simulate.answers import ANSWERS, known_answer, needed, where, where_own

if TYPE_CHECKING:
    from pathlib import Path


def asks_from(module: str, function: str) -> float | None:
    """Ask as a function of another module would."""
    space = {"__name__": module, "answer": known_answer}
    exec(f"def {function}():\n    return answer()", space)
    value: float | None = space[function]()  # type: ignore[operator]
    return value


def test_an_unknown_caller_gets_no_answer_and_is_told_which_of_its_lines_asked() -> None:
    assert known_answer() is None
    said = str(needed("the value of a tensor"))
    assert "test_simulate_answers.py:" in said
    assert '(said = str(needed("the value of a tensor"))) asks for the value of a tensor' in said


def test_no_gradient_overflows_and_norms_are_numbers() -> None:
    assert asks_from("deepspeed.runtime.zero.stage3", "has_overflow") == 0
    assert asks_from("deepspeed.runtime.utils", "is_invalid_grad_norm") == 0
    assert asks_from("deepspeed.runtime.utils", "get_global_norm") == 1


def test_a_library_function_asks_for_its_caller() -> None:
    assert asks_from("torch.nn.utils.clip_grad", "clip_grad_norm_") is None


def test_every_answer_has_a_reason() -> None:
    assert all(one.why for one in ANSWERS)


def test_a_place_is_a_file_and_a_line() -> None:
    assert "test_simulate_answers.py:" in where()


def test_a_place_in_a_library_names_the_own_line_that_led_there(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "library.py"
    space = {"__name__": "library", "where": where, "where_own": where_own}
    exec(compile("def ask(): return where(), where_own()", str(library), "exec"), space)
    whole, own = space["ask"]()  # type: ignore[operator]
    assert "library.py:1, called from" in whole
    assert own.endswith('(whole, own = space["ask"]()  # type: ignore[operator])')
