"""What machines cost: a table with its date, since prices change and discounts are yours alone."""

from datetime import date
from pathlib import Path

from configs.section import Section

_TABLE = Path(__file__).with_name("prices.json")


class Prices(Section):
    """US dollars an hour, by kind of machine."""

    dated: date
    source: str
    """Where they are from, and what to think of them."""
    usd_per_hour: dict[str, float]


def load_prices(path: Path = _TABLE) -> Prices:
    """The table that is shipped.

    Raises:
        ValueError: it was edited into something else.
    """
    return Prices.model_validate_json(path.read_text())
