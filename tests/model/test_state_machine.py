"""``decide`` and ``apply`` under random commands of several actors, without a store. Runs anywhere.

After each command: the independent fold of ``history`` allows the decision; the repeated command is done already; a reader
of a snapshot has the same state. The runs are the same each time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from airflow_checkpoint_provider.coordinator.entry import Entry
from airflow_checkpoint_provider.policies.retention import KeepAll, KeepLatest, KeepWithin, Retention
from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol import updates
from airflow_checkpoint_provider.protocol.checkpoint_records import CONDEMNED, Checkpoint
from airflow_checkpoint_provider.protocol.commands import DoneAlready
from airflow_checkpoint_provider.protocol.config import CheckpointConfig
from airflow_checkpoint_provider.protocol.decisions import decide
from airflow_checkpoint_provider.protocol.events import LaunchSpec, Point, Token
from airflow_checkpoint_provider.protocol.keys import file_set_path
from airflow_checkpoint_provider.protocol.metadata import StateEntry
from airflow_checkpoint_provider.protocol.records import canonical
from airflow_checkpoint_provider.protocol.state import KEPT_RECORDS, State
from airflow_checkpoint_provider.protocol.transitions import fold
from tests.model.history import SAVEPOINTS, History

T = TypeVar("T")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
POLICIES = (KeepLatest(1), KeepLatest(1), KeepLatest(2), KeepLatest(1) | KeepWithin(days=1), KeepAll())
ENDS = st.sampled_from(("finished", "finished", "failed", "cancelled", "suspended", "lost"))
ON_CLEAR = st.sampled_from(("auto", "auto", "continue", "restart"))
RARELY = st.sampled_from((False, False, False, True))
KINDS = (*["checkpoint"] * 6, *["full_checkpoint"] * 2, *["savepoint"] * 3, "suspend_savepoint", "terminate_savepoint")
ORIGINS = ("barrier", "task", "task", "periodic")
REASONS = ("expired", "declined", "store failed", "too large", "subsumed", "audit failed")
TARGET = "memory://saved"
FOREIGN = tuple(f"memory://foreign/savepoint-other-{number}-ab" for number in (3, 9))


def mostly(likely: Iterable[T], others: Iterable[T]) -> st.SearchStrategy[T]:
    """Draw from ``likely`` four times out of five, and from ``others`` if it is empty."""
    first, unlikely = list(likely), list(others)
    return st.sampled_from([*first * max(1, 4 * len(unlikely) // max(1, len(first))), *unlikely])


class Machine(RuleBasedStateMachine):
    """One history. Runs A to D come after each other; the tries and generations of their tasks come in any order."""

    scope = ""
    sent = 0  # commands, by all of its class
    listed = KEPT_RECORDS

    def __init__(self) -> None:
        super().__init__()
        self.state = self.read_back = State()
        self.history = History()

    # -- commands --------------------------------------------------------------------------------------------------

    def send(self, command: c.Command, epoch: int | None = None) -> None:
        type(self).sent += 1
        wrote = self.write(command, epoch)
        if wrote and self.state.closed and not isinstance(command, c.FinishClosing):
            wrote = self.write(command, epoch)  # as a journal does: what was closing is closed on the way
        again = decide(self.state, command)
        done = isinstance(again, DoneAlready) or self.is_forgotten(command)
        assert not wrote or done, f"{command} is not done by having been done"

    def is_forgotten(self, command: c.Command) -> bool:
        """Return whether the checkpoint of the command is no longer listed."""
        return False

    def write(self, command: c.Command, epoch: int | None) -> bool:
        """An entry, if the command is not refused."""
        decision = decide(self.state, command)
        if not isinstance(decision, tuple):
            return False
        assert not self.deletes_unasked(command, decision), f"P8: {command} condemned a savepoint"
        n = self.state.n + 1
        at = (BEGIN + timedelta(hours=n)).isoformat()
        self.state = fold(self.state, n, at, decision)
        self.read_back = snapshot(fold(self.read_back, n, at, decision))
        self.history = self.history.then(Entry(inc="inc", n=n, nonce="", at=at, by={"epoch": epoch}, events=decision))
        assert decision, f"{command} wrote an entry that says nothing"
        return True

    def deletes_unasked(self, command: c.Command, decision: tuple[e.Event, ...]) -> bool:
        """Return whether the decision condemns a savepoint without a disposal."""
        ids = {number for event in decision if isinstance(event, e.CheckpointsCondemned) for number in event.ids}
        saved = any(saved.id in ids for saved in self.state.savepoints)
        return saved and not (isinstance(command, c.Condemn) and command.disposing)

    def plan(self, run: str, number: int, generation: int, **other: object) -> c.PlanLaunch:
        spec = LaunchSpec(
            token=Token(dag="d", run=run, task="t", generation=generation),
            try_number=number,
            owner="d.t",
            run=run,
            run_after=f"2026-01-0{ord(run) - 64}",
            started_at="2026-11-20T00:00:00Z",
            restore=str(other.pop("restore", "latest")),
        )
        known: dict[str, object] = {"spec": spec, "incarnation": "inc", "job": "j", "scope": self.scope}
        return c.PlanLaunch(**(known | other))  # type: ignore[arg-type]

    @rule(data=st.data(), alive=RARELY, durable=st.booleans(), on_clear=ON_CLEAR, required=RARELY)
    def launch(self, data: st.DataObject, alive: bool, durable: bool, on_clear: str, required: bool) -> None:
        """Mostly the next try of the newest run, sometimes of a clear; or any try of any run, from anywhere."""
        newest = self.state.runs[-1] if self.state.runs else None
        launch = self.state.launch(newest.launch) if newest else None
        run = data.draw(mostly([newest.key] if newest else [], "ABCD"))
        latest = launch.latest_try if launch else 0
        number = data.draw(mostly([latest + 1], range(1, latest + 3)))
        generation = data.draw(
            st.sampled_from([0, 0, 0, 1, 2] if newest is None else [newest.generation, newest.generation, 0, 1, 2])
        )
        named = data.draw(mostly([None], [0, *(checkpoint.id for checkpoint in self.state.checkpoints)]))
        self.send(
            self.plan(
                run, number, generation, seen_alive=alive, durable=durable, on_clear=on_clear, require_state=required,
                restore="latest" if named is None else str(named) if named else "none", base=Point(id=named) if named else None,
            )
        )  # fmt: skip

    @precondition(lambda self: not any(self.state.living()))
    @rule(most=st.integers(1, 2), policy=st.sampled_from(POLICIES))
    def begin(self, most: int, policy: Retention) -> None:
        """What a task and its driver do when nobody is in their way: of the newest run, or of the next if that finished."""
        newest = self.state.runs[-1] if self.state.runs else None
        launch = self.state.launch(newest.launch) if newest else None
        run = newest.key if newest else "A"
        number = launch.latest_try + 1 if launch else 1
        if newest and newest.outcome == "finished":
            run, number = chr(min(ord(run) + 1, ord("D"))), 1
        plan = self.plan(run, number, newest.generation if newest and run == newest.key else 0)
        self.send(plan)
        self.send(self.starting(plan.spec.token, number, most, policy))

    def starting(self, token: Token, number: int, most: int, policy: Retention, **other: object) -> c.StartAttempt:
        known: dict[str, object] = {
            "token": token, "try_number": number, "driver": f"driver {self.state.n}",
            "checkpointing": CheckpointConfig(retention=policy, max_concurrent=most).to_json(),
        }  # fmt: skip
        return c.StartAttempt(**(known | other))  # type: ignore[arg-type]

    @precondition(lambda self: self.state.launches)
    @rule(data=st.data(), alive=RARELY, policy=st.sampled_from(POLICIES), most=st.integers(1, 2), paused=RARELY)
    def start(self, data: st.DataObject, alive: bool, policy: Retention, most: int, paused: bool) -> None:
        """Mostly of the current launch; a driver that has started may ask again."""
        current = self.state.current_launch()
        launch = data.draw(mostly([current] if current else [], self.state.launches))
        known = [attempt.driver for attempt in self.state.attempts if attempt.launch == launch.number]
        driver = data.draw(mostly([f"driver {self.state.n}"], known))
        config = CheckpointConfig(retention=policy, max_concurrent=most, min_pause=5 * paused).to_json()
        command = self.starting(launch.spec.token, launch.spec.try_number, most, policy, checkpointing=config)
        self.send(replace(command, driver=driver, seen_alive=alive))

    @rule(run=st.sampled_from("ABCD"), number=st.integers(1, 5), alive=RARELY)
    def start_alone(self, run: str, number: int, alive: bool) -> None:
        plan = self.plan(run, number, 0, alone=True, seen_alive=alive)
        start = c.StartAttempt(token=plan.spec.token, try_number=number, driver=f"alone {self.state.n}")
        self.send(c.StartAlone(plan=plan, start=start))

    def epoch(self, data: st.DataObject) -> int | None:
        """Whose command it is: the living attempt's, anybody's, or that of one that is over."""
        return data.draw(
            mostly(
                [living.epoch for living in self.state.living()],
                [None, *(known.epoch for known in self.state.attempts)],
            )
        )

    @precondition(lambda self: self.state.attempts)
    @rule(
        data=st.data(), number=st.integers(1, 3), gated=RARELY, kind=st.sampled_from(KINDS), origin=st.sampled_from(ORIGINS),
        pause=st.sampled_from((0.0, 0.0, 1.5)),
    )  # fmt: skip
    def trigger(self, data: st.DataObject, number: int, gated: bool, kind: str, origin: str, pause: float) -> None:
        """By the driver or anybody; a request may be known, wait, or have been dropped."""
        epoch = self.epoch(data)
        known = [
            *self.state.requests,
            *(queued.request.token for queued in self.state.queue),
            *(dropped.token for dropped in self.state.dropped_requests),
        ]
        request = data.draw(mostly([f"request {self.state.n}"], known))
        wanted = self.request(request, kind, try_number=number, gated=gated, origin=origin)
        self.send(c.Trigger(request=wanted, epoch=epoch, pause_left_s=pause), epoch)

    def request(self, token: str, kind: str, **other: Any) -> e.Request:
        place: dict[str, Any] = (
            {"folder": TARGET, "nonce": "ab", "name": "n", "owner": "d.t"} if kind in SAVEPOINTS else {}
        )
        return e.Request(token=token, kind=kind, **place | other)

    @precondition(lambda self: any(self.state.living()))
    @rule(data=st.data(), number=st.integers(2, 4))
    def ask(self, data: st.DataObject, number: int) -> None:
        """Several tasks at once: all but the first ones wait."""
        for _ in range(number):
            kind, origin = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(ORIGINS[1:]))
            self.send(c.Trigger(request=self.request(f"request {self.state.n}", kind, origin=origin)))

    @precondition(lambda self: any(self.state.living()))
    @rule(uid=st.sampled_from("ab"), kind=st.sampled_from(KINDS[-5:]), ends=st.booleans())
    def save(self, uid: str, kind: str, ends: bool) -> None:
        """A driver takes a savepoint; one that stops it ends it, unless it is killed before."""
        (epoch,) = [attempt.epoch for attempt in self.state.living()]
        request = self.request(f"request {self.state.n}", kind, origin="task")
        self.send(c.Trigger(request=request, epoch=epoch), epoch)
        for pending in self.state.pending[-1:]:
            self.send(self.completion(pending, uid, ("",), epoch), epoch)
            self.send(c.ConfirmPublished(id=pending.id), epoch)
        if self.state.suspended and ends:
            self.send(c.EndAttempt(epoch=epoch, outcome="suspended"), epoch)

    @precondition(lambda self: self.state.retained)
    @rule(disposing=RARELY, claims=st.booleans())
    def retire(self, disposing: bool, claims: bool) -> None:
        """What a cleaner does when nobody is in its way."""
        now = (BEGIN + timedelta(hours=self.state.n)).isoformat()
        for checkpoint in self.state.retained:
            self.send(c.Condemn(ids=(checkpoint.id,), now=now, disposing=disposing))
        for owned in self.state.claims if claims else ():
            self.send(c.Condemn(ids=(), claims=(owned.pointer,), now=now))
        gone = tuple(checkpoint.id for checkpoint in self.state.with_status(CONDEMNED))
        self.send(
            c.Forget(
                ids=gone,
                claims=tuple(checkpoint.pointer for checkpoint in self.state.claims if checkpoint.status == CONDEMNED),
            )
        )

    @precondition(lambda self: self.state.checkpoints)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        epoch = self.epoch(data)
        found = data.draw(mostly(self.state.retained, self.state.checkpoints))
        self.send(c.ConfirmCommits(id=found.id, epoch=epoch), epoch)

    @precondition(lambda self: self.state.checkpoints)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        found = data.draw(mostly(self.state.savepoints, self.state.checkpoints))
        self.send(c.ConfirmPublished(id=found.id))

    @precondition(lambda self: any(self.state.living()))
    @rule(uid=st.sampled_from("ab"), times=st.integers(1, 3))
    def go_on(self, uid: str, times: int) -> None:
        """What a driver does when nobody is in its way."""
        for epoch in [attempt.epoch for attempt in self.state.living()] * times:
            self.send(c.Trigger(request=e.Request(token=f"request {self.state.n}"), epoch=epoch), epoch)
            for pending in self.state.pending:
                self.send(self.completion(pending, uid, ("",), epoch), epoch)

    @precondition(lambda self: self.state.checkpoints)
    @rule(data=st.data(), short=RARELY, uid=st.sampled_from("ab"))
    def complete(self, data: st.DataObject, short: bool, uid: str) -> None:
        found = data.draw(mostly(self.state.pending, self.state.checkpoints))
        epoch = self.epoch(data)
        self.send(self.completion(found, uid, () if short else ("",), epoch), epoch)

    @precondition(lambda self: any(checkpoint.request.gated for checkpoint in self.state.checkpoints))
    @rule(data=st.data(), uid=st.sampled_from("ab"))
    def finalize(self, data: st.DataObject, uid: str) -> None:
        found = data.draw(
            st.sampled_from([checkpoint for checkpoint in self.state.checkpoints if checkpoint.request.gated])
        )
        self.send(replace(self.completion(found, uid, ("",), None), finalize=True))

    def completion(self, found: Checkpoint, uid: str, acknowledged: tuple[str, ...], epoch: int | None) -> c.Complete:
        writer = found.epochs[0]
        new = StateEntry(uid=uid, kind="stage", run="A", file_sets=(file_set_path(uid, writer, str(found.id)),))
        states = (*self.handed_on(writer, uid), new)
        return c.Complete(
            id=found.id,
            digest=f"seal {found.id}",
            metadata_bytes=9,
            bytes=1,
            states=states,
            acknowledged=acknowledged,
            epoch=epoch,
        )

    def handed_on(self, epoch: int, uid: str) -> tuple[StateEntry, ...]:
        """What the driver of ``epoch`` has not reached of its restore point."""
        attempt = self.state.attempt(epoch)
        point = self.state.checkpoint(attempt.restore_point.id) if attempt and attempt.restore_point else None
        if point is None:  # nobody lists it any more, but the driver knows
            uids = self.history.attempts[epoch].uids - {uid}
            return tuple(StateEntry(uid=known, kind="stage", run="A") for known in sorted(uids))
        paths = self.state.paths()
        file_sets = tuple(paths[number] for number in point.file_sets)
        return tuple(replace(state, file_sets=file_sets) for state in point.states if state.uid != uid)

    @precondition(lambda self: self.state.checkpoints)
    @rule(data=st.data(), reason=st.sampled_from(REASONS))
    def abort(self, data: st.DataObject, reason: str) -> None:
        found, epoch = data.draw(mostly(self.state.pending, self.state.checkpoints)), self.epoch(data)
        self.send(c.Abort(id=found.id, reason=reason, epoch=epoch), epoch)

    @precondition(lambda self: self.state.attempts)
    @rule(data=st.data(), how=ENDS, task=st.booleans())
    def end(self, data: st.DataObject, how: str, task: bool) -> None:
        attempt = data.draw(mostly(list(self.state.living()), self.state.attempts))
        self.send(c.EndAttempt(epoch=attempt.epoch, outcome=how, from_task=task), None if task else attempt.epoch)

    @precondition(lambda self: self.state.launches)
    @rule(data=st.data(), number=st.integers(1, 5), really=RARELY)
    def stop(self, data: st.DataObject, number: int, really: bool) -> None:
        launch = data.draw(st.sampled_from(self.state.launches))
        if really or launch.number not in self.state.current_launches.values():
            self.send(c.RequestStop(launch=launch.number, try_number=number, by="d.t", reason="killed"))

    @precondition(lambda self: self.state.launches)
    @rule(data=st.data(), number=st.integers(1, 5), how=st.sampled_from(("finished", "failed", "lost")))
    def end_launch(self, data: st.DataObject, number: int, how: str) -> None:
        launch = data.draw(mostly([self.state.launches[-1]], self.state.launches))
        self.send(c.EndLaunch(launch=launch.number, try_number=number, outcome=how))

    @precondition(lambda self: self.state.incarnation)
    @rule(data=st.data(), number=st.integers(1, 4), really=RARELY, claimed=st.booleans())
    def restore(self, data: st.DataObject, number: int, really: bool, claimed: bool) -> None:
        """By a task that is cleared now and then, or that lifts a suspension; to any checkpoint, to a savepoint from
        elsewhere, or to nothing."""
        here = [Point(id=checkpoint.id) for checkpoint in self.state.retained]
        others = [
            None,
            *(Point(pointer=pointer) for pointer in FOREIGN),
            *(Point(id=checkpoint.id) for checkpoint in self.state.checkpoints),
        ]
        base = data.draw(mostly(here, others))
        token = Token(dag="d", run="A", task="restore", generation=number)
        elsewhere = base is not None and base.pointer is not None
        id_floor = int(str(base).split("-")[2]) if elsewhere else 0
        if really or self.state.suspended:
            self.send(
                c.Restore(
                    token=token, base=base, by="d.restore", reason="restore", id_floor=id_floor, claimed=claimed and elsewhere,
                    rename={"b": "a"} if elsewhere else {},
                )
            )  # fmt: skip

    @precondition(lambda self: self.state.retained)
    @rule(data=st.data(), skew=st.integers(-48, 480), disposing=RARELY)
    def condemn(self, data: st.DataObject, skew: int, disposing: bool) -> None:
        """By any clock."""
        ids, epoch = self.some(data, self.state.retained), self.epoch(data)
        now = (BEGIN + timedelta(hours=skew)).isoformat()
        self.send(c.Condemn(ids=ids, now=now, epoch=epoch, disposing=disposing), epoch)

    @precondition(lambda self: self.state.claims)
    @rule(data=st.data(), skew=st.integers(-48, 480))
    def give_up(self, data: st.DataObject, skew: int) -> None:
        """A claimed savepoint, perhaps together with a checkpoint."""
        ids = data.draw(st.sampled_from([(), *((checkpoint.id,) for checkpoint in self.state.retained)]))
        claims = tuple(sorted(data.draw(st.sets(st.sampled_from(FOREIGN), min_size=1))))
        self.send(c.Condemn(ids=ids, claims=claims, now=(BEGIN + timedelta(hours=skew)).isoformat()))

    @precondition(lambda self: self.state.claims)
    @rule(data=st.data())
    def forget_claims(self, data: st.DataObject) -> None:
        self.send(c.Forget(ids=(), claims=tuple(sorted(data.draw(st.sets(st.sampled_from(FOREIGN), min_size=1))))))

    @precondition(lambda self: self.state.checkpoints)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        ids, epoch = self.some(data, self.state.with_status(CONDEMNED)), self.epoch(data)
        self.send(c.Forget(ids=ids, epoch=epoch), epoch)

    @precondition(lambda self: not any(self.state.living()))
    @rule(skew=st.integers(-48, 480))
    def close(self, skew: int) -> None:
        self.send(c.CloseHistory(reason="nobody needs it", now=(BEGIN + timedelta(hours=skew)).isoformat()))

    @precondition(lambda self: self.state.closing is not None)
    @rule()
    def finish_closing(self) -> None:
        self.send(c.FinishClosing())

    def some(self, data: st.DataObject, likely: Sequence[Checkpoint]) -> tuple[int, ...]:
        number = mostly([known.id for known in likely], [known.id for known in self.state.checkpoints])
        return tuple(sorted(data.draw(st.sets(number, min_size=1, max_size=data.draw(st.sampled_from((1, 1, 3)))))))

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def every_entry_may_stand(self) -> None:
        assert not self.history.wrong, self.history.wrong

    @invariant()
    def a_snapshot_is_the_state(self) -> None:
        assert self.read_back == self.state

    @invariant()
    def both_folds_say_the_same(self) -> None:
        state, history = self.state, self.history
        point = state.restore_point()
        assert (point and (point.pointer or point.id)) == history.restore_point()
        assert {attempt.epoch for attempt in state.living()} == set(history.living())
        assert {checkpoint.id for checkpoint in state.pending} == history.with_status("pending").keys()
        assert {checkpoint.id for checkpoint in state.retained} == history.with_status("retained").keys()
        assert (state.closing is not None, state.closed) == (history.closing or history.closed, history.closed)
        assert state.last_epoch == max(history.attempts, default=0)
        assert state.next_id == max((*history.checkpoints, history.least)) + 1
        assert bool(state.suspended) == history.suspended
        assert {claim.pointer: claim.status for claim in state.claims} == history.claims

    @invariant()
    def both_folds_say_the_same_of_requests(self) -> None:
        state, history = self.state, self.history
        assert [queued.request.token for queued in state.queue] == list(history.queue)
        dropped = {drop.token: drop.try_number for drop in state.dropped_requests}
        assert dropped == history.dropped or (dropped.items() <= history.dropped.items() and self.listed < KEPT_RECORDS)
        assert len(state.failed()) == history.failures(self.listed)

    @invariant()
    def both_folds_say_the_same_of_savepoints(self) -> None:
        saved = {number: point for number, point in self.history.with_status("retained").items() if point.savepoint}
        assert {point.id: point.published for point in self.state.savepoints} == {
            number: point.published for number, point in saved.items()
        }
        own = {path for point in self.history.checkpoints.values() for path in point.paths}
        assert set(self.state.paths().values()) <= own, "file sets that lie at a target"

    @invariant()
    def the_restore_point_is_retained(self) -> None:
        point = self.history.restore_point()
        retained = self.history.with_status("retained")
        if isinstance(point, int):
            assert point in retained or self.history.run_ended()
        else:
            assert self.history.claims.get(str(point)) != "condemned" or self.history.run_ended()

    @invariant()
    def nobody_may_delete_what_is_referred_to(self) -> None:
        paths = self.state.paths()
        referred = {paths[number] for number in self.state.referred()}
        for checkpoint in self.history.with_status("retained").values():
            assert checkpoint.paths <= referred
        for epoch in self.history.living():
            assert self.history.attempts[epoch].holds <= referred


def snapshot(state: State) -> State:
    return State.from_json(json.loads(canonical(state.to_json())))


class RunScopeMachine(Machine):
    """… where what ends with the run may be condemned."""

    scope = "A"


class CrampedMachine(Machine):
    """… where nothing is remembered for long: each bound is met within few steps."""

    listed = 3

    def __init__(self) -> None:
        super().__init__()
        self._bounds = mock.patch.multiple(updates, KEPT_RECORDS=self.listed, KEPT_TOKENS=4)
        self._bounds.start()

    def teardown(self) -> None:
        self._bounds.stop()

    def is_forgotten(self, command: c.Command) -> bool:
        return isinstance(command, c.Abort) and self.state.checkpoint(command.id) is None

    @invariant()
    def every_entry_may_stand(self) -> None:
        """A token that was forgotten asks for the first time."""
        assert not self.history.wrong or self.history.wrong.startswith("P11"), self.history.wrong


def settled(examples: int, steps: int, *, always_the_same: bool = False) -> settings:
    return settings(
        database=None, deadline=None, max_examples=examples, stateful_step_count=steps, derandomize=always_the_same,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )  # fmt: skip


MACHINES = [Machine, RunScopeMachine, CrampedMachine]


@pytest.mark.parametrize("machine", MACHINES)
def test_random_commands_are_decided_as_the_history_allows(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settled(6, 60, always_the_same=True))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", MACHINES)
def test_many_random_commands_are_decided_as_the_history_allows(machine: type[Machine]) -> None:
    """At least so many commands: of how many an example consists is not ours to say."""
    machine.sent = 0
    for number in itertools.count():
        run_state_machine_as_test(seed(number)(machine), settings=settled(500, 60))
        if machine.sent >= COMMANDS:
            return


COMMANDS = 40_000
