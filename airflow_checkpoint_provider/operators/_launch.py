"""Plan the launch of a job by one try of its task: verify where to start, adopt or fence. Runs in Airflow (worker).

The journal decides; processes, signals and heartbeats are hints. The task asks again after each wait whether this try may
still act, because the ``execute`` of a killed task goes on.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from airflow_checkpoint_provider.coordinator.journal import utc_now
from airflow_checkpoint_provider.coordinator.liveness import (
    Liveness,
    beat_keys,
    follower_beat,
    read_beat,
)
from airflow_checkpoint_provider.coordinator.restore import examine, id_floor_of, resolve
from airflow_checkpoint_provider.errors import (
    Refused,
    Stopping,
)
from airflow_checkpoint_provider.hooks.driver_monitor import POLL
from airflow_checkpoint_provider.operators import _earlier, _memory
from airflow_checkpoint_provider.operators._launched import LaunchedDriver
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol.decisions import decide
from airflow_checkpoint_provider.protocol.events import LaunchPlanned, LaunchSpec
from airflow_checkpoint_provider.protocol.launch_records import Launch
from airflow_checkpoint_provider.protocol.launches import is_clear
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.storage import probe
from airflow_checkpoint_provider.text import restore_story
from airflow_checkpoint_provider.text.restore_story import StoryFacts


class DriverLaunch(LaunchedDriver):
    """The launch of one try, which it plans or adopts."""

    _before, _seen = State(), StoryFacts()  # the state and the observations on which the launch was decided
    _old: Sequence[str] = ()  # the warning that the run starts from an old point

    def plan(self) -> Launch:
        """Verify where to start, then write one entry: it fences the old attempt and sets the restore point.

        Return the launch that this try planned, or adopted (``adopted``). A refusal does not touch the old attempt.
        """
        state = self.coordinator.journal.catch_up()
        if state.n < 0:
            probe(self.store)
        _earlier.check(self, state)
        self.instance.register(self.parameters.try_number)
        command = self._plan_command(state)
        self._stop_deferred(state, command)
        self._append_plan(command)
        self.record = self.state.current_launch()
        if self.record is None:
            raise Refused(f"{self.parameters.history.job}: the launch was replaced as soon as it was planned")
        if self.killed.is_set():
            self.request_stop("the task was killed while it planned")
            raise Refused(f"{self.parameters.history.job}: this task was killed")
        own = not self.adopted
        if own:
            self._heart().pulse()  # from now on other readers see that this launch lives
        if self.parameters.discarded:
            self.log(restore_story.given_up(self._before, self.state, self.record))
        self.log(
            [*restore_story.launch_story(self._before, self.state, self.record, self.restored, self._seen), *self._old]
        )
        if own and self.parameters.memory:
            self.log(_memory.not_raised(self.parameters.memory, self._before, self.parameters.token.run))
        return self.record

    def resume(self) -> bool:
        """Find the launch that this try planned or adopted before it was deferred. Return False if there is none."""
        state = self.coordinator.journal.catch_up()
        _earlier.check(self, state)
        self.instance.register(self.parameters.try_number)
        token, latest = self.parameters.token, (self.parameters.map_index, self.parameters.try_number)
        own = [
            launch
            for launch in state.launches
            if launch.spec.token.same_task(token) and (launch.map_index, launch.latest_try) == latest
        ]
        self.record = own[-1] if own else None
        return self.record is not None

    def _stop_deferred(self, state: State, command: c.PlanLaunch) -> None:
        """Ask the driver of a task to stop that was cleared while it was deferred: no process of the task was there to ask."""
        launch = state.current_launch()
        if launch is None or launch.spec.run != self.parameters.token.run or launch.stop:
            return
        other = self.instance.other(state)
        if not is_clear(state.run(self.parameters.token.run), replace(command, other=other)):
            return
        if follower_beat(self.store, self.keys, state) and not (other and other.holds):
            with contextlib.suppress(Refused):  # by a later try: the plan is refused, too, and says why
                self.request_stop("the task was cleared while it was deferred", launch, moved=other is not None)

    def _plan_command(self, state: State) -> c.PlanLaunch:
        parameters = self.parameters
        first = state.run(parameters.token.run) is None
        base = resolve(parameters.restore, state, self.store, parameters.restore_incarnation) if first else None
        return c.PlanLaunch(
            spec=self._spec(),
            incarnation=secrets.token_hex(16),
            job=parameters.history.job,
            scope=parameters.history.run or "",
            item=parameters.history.item,
            base=base,
            id_floor=id_floor_of(base, self.store),
            on_clear=parameters.on_clear,
            require_state=parameters.require_state,
            durable=parameters.durable,
        )

    def _spec(self) -> LaunchSpec:
        return LaunchSpec(
            token=self.parameters.token,
            try_number=self.parameters.try_number,
            owner=self.parameters.token.owner,
            run=self.parameters.token.run,
            run_after=self.parameters.run_after,
            started_at=self.parameters.now,
            restore=self.parameters.restore,
            connection=self.parameters.connection,
            map_index=self.parameters.map_index,
        )

    def _append_plan(self, plan: c.PlanLaunch) -> None:
        """Write the plan. Wait first for a driver that was asked to stop, for up to 60 s; then replace its launch."""
        deadline = time.monotonic() + self.beats.still
        liveness, waited = Liveness(self.store, self.beats), False

        def verified_plan(state: State) -> c.PlanLaunch:
            log_check = functools.partial(self.log, [restore_story.waits_for_heartbeat(state, self.beats.wait)])
            alive = (not waited or time.monotonic() < deadline) and liveness.wait(
                beat_keys(self.keys, state), log_check
            )
            if self.killed.is_set():
                raise Refused(f"{self.parameters.history.job}: this task was killed; nothing was planned")
            self._before, self._seen = state, self._observe(state, alive)
            memory = _memory.next_memory(self.parameters.memory, state, plan.spec.run).used
            command = replace(
                plan, seen_alive=alive, other=self.instance.other(state), spec=replace(plan.spec, memory=memory)
            )
            self._verify(state, decide(state, command))
            return command

        while True:
            try:
                self.coordinator.journal.append(verified_plan)
                return
            except Stopping as error:
                self.log([f"{error.message}; waiting for it for up to {self.beats.still:.0f} s"])
                self._wait_until_stopped(deadline)
                liveness, waited = Liveness(self.store, self.beats), True

    def _observe(self, state: State, alive: bool) -> StoryFacts:
        """Return the observations of the driver that the log needs besides the journal."""
        beats = (read_beat(self.store, key) for key in beat_keys(self.keys, state))
        return StoryFacts(self.store.uri, next(filter(None, beats), None), alive, utc_now())

    def _verify(self, state: State, decision: object) -> None:
        """Verify the checkpoint from which the launch would start. A clear may start from another one than a retry."""
        events = decision if isinstance(decision, tuple) else ()
        for event in events:
            if isinstance(event, LaunchPlanned):
                self.restored = examine(self.coordinator, state, event.restore_point, told=self.parameters.restore)
                if (limit := self.parameters.restore_age) and state.run(self.parameters.token.run) is None:
                    self._old = limit.judge(self.parameters.history.job, state, self.restored, self.parameters.now)

    def _wait_until_stopped(self, deadline: float) -> None:
        """Wait while the driver's process lives on this host. ``Liveness`` decides about other hosts afterwards."""
        while time.monotonic() < deadline and not self.killed.is_set():
            keys = beat_keys(self.keys, self.coordinator.journal.poll())
            beats = (read_beat(self.store, key) for key in keys)
            if not any(beat and beat.process.lives() for beat in beats):
                return
            time.sleep(min(POLL, self.beats.every))
