"""The state machine: ``decide(state, command)`` -> events, *done already*, or a refusal. Pure. Runs anywhere.

Each command has one handler, in the module of its subject. Every handler asks its questions in this order:

1. Is what is wanted already so, by an entry that says the same? Then the answer is *done already*, before any refusal. So
   deciding again is harmless, which makes a lost answer harmless.
2. Is the driver that asks fenced?
3. Do the rules of the command refuse it?

``decide`` adds what holds for all commands: a history that is closing accepts only what opens or closes it, and an entry that
makes room triggers the queued requests that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import completion, deletion, launches, lifetime, requests, restores
from airflow_checkpoint_provider.protocol.commands import Decision
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import apply


def decide(state: State, command: c.Command) -> Decision:
    """What ``command`` means for ``state``; what that makes possible for queued requests stands in the same entry."""
    if state.closing is not None and (finish := lifetime.finished_first(state, command)):
        return finish
    decision: Decision = HANDLERS[type(command)](state, command)
    if state.closing is not None:
        return lifetime.closed(state, command, decision)
    if not isinstance(decision, tuple):
        return decision
    for event in decision:
        state = apply(state, event)
    return (*decision, *requests.asked_again(state))


HANDLERS: dict[type[c.Command], Callable[[State, Any], Decision]] = {
    c.PlanLaunch: launches.plan_launch,
    c.StartAttempt: launches.start_attempt,
    c.StartAlone: launches.start_alone,
    c.RequestStop: launches.request_stop,
    c.EndAttempt: launches.end_attempt,
    c.Trigger: requests.trigger,
    c.Complete: completion.complete,
    c.Abort: completion.abort,
    c.ConfirmCommits: completion.confirm_commits,
    c.ConfirmPublished: completion.confirm_published,
    c.Restore: restores.restore,
    c.Condemn: deletion.condemn,
    c.Forget: deletion.forget,
    c.CloseHistory: lifetime.close,
    c.FinishClosing: lifetime.finish,
}
