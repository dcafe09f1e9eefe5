"""The page of figures."""

import pytest

from tests.web.conftest import Visitor


@pytest.mark.parametrize("period", ["day", "week", "month", "quarter", "nonsense"])
async def test_every_period_has_its_plots(visitor: Visitor, period: str):
    page = await visitor.page(f"/vitals?period={period}")
    assert page.count('class="plot"') == 2 and "Every call is archived, summarised and stored." in page


async def test_figures_in_plain_words(visitor: Visitor):
    page = await visitor.page("/vitals?period=month")
    assert "Answers begin within" in page and "half of them" in page and "caller hung up" in page
    assert "0 callers on the line" in page and "Voice engine: local" in page
