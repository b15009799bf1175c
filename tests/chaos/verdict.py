"""What was found wrong, and enough of it to find out why."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

_KEPT = 20


@dataclass
class Verdict:
    """Violations by subject. lost, duplicated: events of rows, added up over rows and tables."""

    lost: int = 0
    duplicated: int = 0
    removed: int = 0  # rows that were evicted or expired
    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    numbers: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def miscounted(self, subject: str, expected: int, found: int, what: str) -> None:
        """A number of events; nothing if it is right."""
        self.lost += max(0, expected - found)
        self.duplicated += max(0, found - expected)
        if expected != found:
            self.wrong(subject, f"{what}: {expected} events produced, {found} applied")

    def wrong(self, subject: str, what: str) -> None:
        """Counted; the first ones of a subject are kept."""
        self.numbers[subject] += 1
        if self.numbers[subject] <= _KEPT:
            self.violations[subject].append(what)

    def right(self, subject: str) -> bool:
        """Whether nothing was found wrong with it."""
        return not self.numbers[subject]

    @property
    def clean(self) -> bool:
        """Whether nothing at all was found wrong."""
        return not any(self.numbers.values())
