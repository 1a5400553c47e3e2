"""The explorer itself: what its faults do, and that a world does not depend on the way to it. Runs anywhere."""

from __future__ import annotations

from airflow_checkpoint_provider.storage.base import Put, put
from tests.model.explore import TRIES_TWICE, Breach, Claim, Disk, Explorer, Next, Process

KEY = "journal/1"


class Anything:
    """Finds fault with nothing but a claim that says so."""

    def world(self, disk: Disk, claims: frozenset[Claim]) -> str | None:
        return "two were told that they won" if len(claims) > 1 else None

    def claim(self, disk: Disk, claim: Claim) -> str | None:
        return "broken" if claim.what == ("broken",) else None

    def settled(self, disk: Disk) -> str | None:
        return None


def writer(process: Process, name: bytes) -> None:
    """Says once for good what ``put`` told it."""
    outcome, _ = put(process, KEY, name, patience=TRIES_TWICE)
    if outcome is Put.STORED:
        process.says_for_good("won", name)


def careless(process: Process, name: bytes) -> None:
    """Takes silence for success."""
    if process.create(KEY, name) is not Put.EXISTS:
        process.says_for_good("won", name)


def outcomes(kind: str) -> list[object]:
    """What the first put answers if it is hurt so, what the store holds then, and what is under way."""
    explorer = Explorer({"one": (writer, b"1")}, Anything(), faults=1)
    world, _ = explorer.move(explorer.start, 0, kind)
    words = explorer.in_words(explorer.start, 0, kind)
    answer = words.split(" -> ")[1].split("\n")[0]
    return [answer, explorer.disk(world).objects.get(KEY), [op.body for op in world.flying]]


def test_faults_have_their_effect_on_the_store() -> None:
    assert outcomes("now") == ["STORED", b"1", []]
    assert outcomes("lost") == ["no answer", b"1", []]
    assert outcomes("late") == ["no answer", None, [b"1"]]
    assert outcomes("twice") == ["STORED", b"1", [b"1"]]
    assert outcomes("echo") == ["EXISTS", b"1", []]


def test_one_of_two_writers_wins_in_every_schedule() -> None:
    explorer = Explorer({"one": (writer, b"1"), "two": (writer, b"2")}, Anything(), faults=3)
    assert explorer.exhaust(100_000) == explorer.exhaust(100_000)
    assert explorer.complete


def test_exhaust_finds_a_bug_by_a_shortest_trace() -> None:
    found = Explorer({"one": (careless, b"1"), "two": (careless, b"2")}, Anything(), faults=1).exhaust(1_000)
    assert isinstance(found, Breach)
    assert len(found.trace) == 2


def test_walk_finds_a_bug_by_the_same_trace_each_time() -> None:
    walks = [
        Explorer({"one": (careless, b"1"), "two": (careless, b"2")}, Anything(), faults=1).walk(100) for _ in range(2)
    ]
    assert isinstance(walks[0], Breach)
    assert walks[0] == walks[1]


def waiting(process: Process) -> Next:
    process.waits_for(b"go")
    return Next(going)


def going(process: Process) -> None:
    process.says("broken")


def test_waiting_actor_is_not_chosen_before_its_condition() -> None:
    alone = Explorer({"waiting": (waiting,)}, Anything())
    assert alone.exhaust(100) == 1
    with_starter = Explorer({"waiting": (waiting,), "starter": (writer, b"go")}, Anything()).exhaust(100)
    assert isinstance(with_starter, Breach)
    assert [line.split(":")[0] for line in with_starter.trace] == ["starter", "waiting"]
