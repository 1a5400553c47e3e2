"""The state machine: ``decide(state, command)`` -> events, *done already*, or a refusal. Pure. Runs anywhere.

Each command has one handler, in the module of its subject. Every handler asks its questions in this order:

1. Has an earlier entry already done the same? Then the answer is *done already*, before any refusal. So it is harmless
   to decide again, and therefore harmless to lose an answer.
2. Is the driver that sent the command fenced?
3. Do the rules of the command refuse it?

``decide`` adds the rules of all commands. A history that is closing accepts only commands that open or close it. An entry that
makes room triggers queued requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_checkpoint_provider.protocol import commands as c
from airflow_checkpoint_provider.protocol import completion, deletion, launches, lifetime, queries, requests, restores
from airflow_checkpoint_provider.protocol import events as e
from airflow_checkpoint_provider.protocol.commands import Decision
from airflow_checkpoint_provider.protocol.state import State
from airflow_checkpoint_provider.protocol.transitions import apply


def decide(state: State, command: c.Command) -> Decision:
    """Return the answer to ``command``. The events of queued requests that it makes possible stand in the same entry."""
    if finish := lifetime.finish_closing_first(state, command):
        return finish
    decision: Decision = HANDLERS[type(command)](state, command)
    if state.closing:
        return lifetime.closed(state, state.closing, command, decision)
    if not isinstance(decision, tuple):
        return decision
    if not state.queue and not any(isinstance(event, e.RequestQueued) for event in decision):
        return decision  # no request waits, so the events need not be applied here and again in the journal
    for event in decision:
        state = apply(state, event)
    return (*decision, *requests.serve_queue(state))


HANDLERS: dict[type[c.Command], Callable[[State, Any], Decision]] = {
    c.PlanLaunch: launches.plan_launch,
    c.StartAttempt: launches.start_attempt,
    c.StartAlone: launches.start_alone,
    c.RequestStop: launches.request_stop,
    c.EndLaunch: launches.end_launch,
    c.EndAttempt: launches.end_attempt,
    c.Trigger: requests.trigger,
    c.Complete: completion.complete,
    c.Abort: completion.abort,
    c.ConfirmCommits: completion.confirm_commits,
    c.ConfirmPublished: completion.confirm_published,
    c.LocateQuery: queries.locate,
    c.SettleQuery: queries.settle,
    c.ReleaseQuery: queries.release,
    c.Restore: restores.restore,
    c.Condemn: deletion.condemn,
    c.Forget: deletion.forget,
    c.CloseHistory: lifetime.close,
    c.FinishClosing: lifetime.finish,
}
