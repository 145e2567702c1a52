"""ArrangedStep: one step of a script with the batch, or the state, of an earlier one, to see who is to blame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stayfinite.findings.subjects.run_record import StepRecord
from stayfinite.launch.session import Session
from stayfinite.prove.trial import Arrangement
from stayfinite.recover.state_copy import StateCopy


class ArrangedStep:
    """Listens to a session, in a child: what it changes is lost with that."""

    def __init__(self, wanted: Arrangement, session: Session) -> None:
        self._wanted, self._session = wanted, session
        self._earlier: Any = None  # the last batch before the step
        self._has_earlier = False
        self._copy: StateCopy | None = None
        self._given = self._restored = False

    def install(self) -> None:
        self._session.history.listeners.append(self._step_is_over)
        self._session.observers.hear("batch", self._next_batch)

    @property
    def made(self) -> bool:
        """The step had what it was to have."""
        wanted = self._wanted
        return (self._given or not wanted.other_batch) and (self._restored or not wanted.good_state)

    def _next_batch(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        batch = original(iterator)
        if self._session.history.step < self._wanted.step:
            self._earlier, self._has_earlier = batch, True
        elif (
            self._wanted.other_batch and self._has_earlier and self._session.history.step == self._wanted.step
        ):
            self._given = True
            return self._earlier
        return batch

    def _step_is_over(self, record: StepRecord) -> None:
        """The numbers of steps are those of the guard, which is asked between two of them."""
        if not self._wanted.good_state:
            return
        step, state = self._session.history.step, self._session.training.state
        if state is None:
            return
        with self._session.tracer.only_looking():
            if step == self._wanted.copied_before:
                self._copy = StateCopy(state)
                self._copy.take()
            elif step == self._wanted.step and self._copy is not None:
                self._copy.restore()
                self._restored = True
