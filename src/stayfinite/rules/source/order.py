"""What the rules on the order of a training loop share: which events exclude each other, which imply each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stayfinite.findings.subjects.source_file import Event, FunctionFacts


def exclusive(a: Event, b: Event) -> bool:
    """The two never happen in one turn: a test around one is the opposite of a test around the other."""
    other = dict(b.branch)
    return any(test in other and other[test] is not way for test, way in a.branch)


def implied(a: Event, *others: Event) -> bool:
    """Whenever the others happen, `a` happens too: every test around it stands around one of them."""
    around = {test for event in others for test in event.branch}
    return all(test in around for test in a.branch)


def together(a: Event, b: Event) -> bool:
    """Both stand in the same loop, or in the same function outside of loops."""
    return a.loop == b.loop


def before(facts: FunctionFacts, event: Event, *kinds: str) -> Iterator[Event]:
    """The events of these kinds that come before one, nearest first."""
    events: Sequence[Event] = facts.events
    place = events.index(event)
    for earlier in reversed(events[:place]):
        if earlier.what in kinds:
            yield earlier
