"""The documentation shows the pages as they are."""

from __future__ import annotations

import pytest

from tests.support.screenshots import COMMAND, FOLDER, TEMPLATES, made_of, noted


@pytest.mark.parametrize("name", TEMPLATES)
def test_screenshot_was_taken_after_the_last_change_of_its_page(name: str) -> None:
    assert (FOLDER / f"{name}.png").exists()
    assert noted().get(name) == made_of(name), (
        f"a template or the style has changed; take the screenshots anew: {COMMAND}"
    )


def test_each_screenshot_is_one_of_a_page() -> None:
    assert {file.stem for file in FOLDER.glob("*.png")} == TEMPLATES.keys()
