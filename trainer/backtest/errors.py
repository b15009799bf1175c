"""What a back-test can't go on with.

BacktestError
├── DataUnusable   the file, the topic, a column or a value; the message names it and the remedy
├── StoreUnusable  the store that is to be learned in: away, or not empty
└── Unavailable    a package that an optional part needs is not installed
"""

from __future__ import annotations


class BacktestError(Exception):
    """Root of this room's errors."""


class DataUnusable(BacktestError):
    """The data can't be used."""


class StoreUnusable(BacktestError):
    """The store can't be used."""


class Unavailable(BacktestError):
    """An optional package is missing."""
