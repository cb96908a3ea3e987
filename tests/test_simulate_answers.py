from __future__ import annotations

import pytest

from zeropeak.profile.simulate.answers import ANSWERS, DataNeeded, answer, where


def asks_from(module: str, function: str) -> float:
    """Ask as a function of another module would."""
    space = {"__name__": module, "answer": answer}
    exec(f"def {function}():\n    return answer()", space)
    value: float = space[function]()  # type: ignore[operator]
    return value


def test_an_unknown_caller_is_told_which_of_its_lines_asked() -> None:
    with pytest.raises(
        DataNeeded, match=r"test_simulate_answers\.py:\d+ \(answer\(\)\) asks for the value of a tensor"
    ):
        answer()


def test_no_gradient_overflows_and_norms_are_numbers() -> None:
    assert asks_from("deepspeed.runtime.zero.stage3", "has_overflow") == 0
    assert asks_from("deepspeed.runtime.utils", "is_invalid_grad_norm") == 0
    assert asks_from("deepspeed.runtime.utils", "get_global_norm") == 1


def test_a_library_function_asks_for_its_caller() -> None:
    with pytest.raises(DataNeeded, match="test_simulate_answers"):
        asks_from("torch.nn.utils.clip_grad", "clip_grad_norm_")


def test_every_answer_has_a_reason() -> None:
    assert all(one.why for one in ANSWERS)


def test_a_place_is_a_file_and_a_line() -> None:
    assert "test_simulate_answers.py:" in where()
