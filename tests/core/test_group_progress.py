"""Consumer groups that made progress before a broker's restart must make progress after it, before the next one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupProgressSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import GroupPosition, GroupSweep, Lag
from airflow_provider_kmigrate.core.migration.group_progress import (
    BASELINE_FRESH,
    MARKERS,
    MOST_KEPT,
    MOST_NAMED,
    MOST_SAMPLES,
    OLDEST,
    SAMPLE_EVERY,
    SAMPLE_LATER,
    SAMPLES,
    STOPPED,
    WINDOW,
    GroupProgress,
    GroupsKept,
    describe_progress,
)

RESTART, DONE = Act(Verb.RESTART, "Broker 1 may stop."), Done("Broker 1 is back.")
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
UNREAD = Reason("U05", "not read", cause=Cause.UNREAD_GROUPS)
WITHIN = 20.0
SPEC = GroupProgressSpec(commit_within=WITHIN)
EMPTY = GroupSweep()

Offsets = Mapping[TopicPartition, tuple[int, int]]  # committed, log end


def at(**groups: Offsets) -> GroupSweep:
    """A sweep in which these groups have members."""
    return GroupSweep(
        {name: GroupPosition({where: Lag(*each) for where, each in offsets.items()}) for name, offsets in groups.items()}
    )


def without_members(**places: tuple[int, int]) -> GroupSweep:
    """A sweep in which billing has no members, and stands there."""
    where = {"P0": P0, "P1": P1}
    return GroupSweep(left={"billing": GroupPosition({where[name]: Lag(*each) for name, each in places.items()})})


class Restart:
    """The observations around one restart, `SAMPLE_LATER` seconds apart; what one process knows, or what it left to this one."""

    def __init__(self, spec: GroupProgressSpec = SPEC, kept: GroupsKept | None = None, age: float = 0.0) -> None:
        self.now = 1_000.0
        self.groups = GroupProgress.of(spec, kept, age, self.now)

    def observe(self, sweep: GroupSweep | None, decision: Decision, *, end: bool = False) -> Decision:
        """What becomes of the decision; None: the sweep was not answered."""
        self.now += SAMPLE_LATER
        view = ClusterView(self.now, group_progress=sweep, unknowns=() if sweep else (UNREAD,))
        self.groups, held = self.groups.add_view(view, decision, end=end)
        return held

    def before(self, *sweeps: GroupSweep | None) -> Decision:
        """Before a restart; returns the last decision."""
        return [self.observe(sweep, RESTART) for sweep in sweeps][-1]

    def after(self, *sweeps: GroupSweep | None) -> Decision:
        """At the end of the roll; returns the last decision."""
        return [self.observe(sweep, DONE, end=True) for sweep in sweeps][-1]

    def restart(self) -> None:
        self.groups = self.groups.with_restart_begun()

    def left(self) -> GroupsKept:
        """What the next step reads."""
        return GroupsKept.from_json(json.loads(json.dumps(self.groups.groups_to_keep(self.now, 5_000.0).to_json())))


def moving(name: str = "billing") -> list[GroupSweep]:
    """Three sweeps in which a group moves on both its partitions."""
    return [at(**{name: {P0: (10 * n, 10 * n + 5), P1: (10 * n, 10 * n)}}) for n in (1, 2, 3)]


def restarted(*before: GroupSweep, spec: GroupProgressSpec = SPEC) -> Restart:
    """A restart that begins after these sweeps."""
    there = Restart(spec)
    assert isinstance(there.before(*(before or moving())), Act)
    there.restart()
    return there


def causes(decision: Decision) -> list[object]:
    return [reason.cause for reason in decision.reasons] if isinstance(decision, Wait) else []


def held(decision: Decision) -> bool:
    return isinstance(decision, Wait)


LATE = {P0: (31, 90), P1: (31, 90)}  # behind by much
STILL = [at(billing=LATE)] * 12


def test_a_restart_waits_until_two_sweeps_far_apart_show_who_makes_progress() -> None:
    there = Restart()
    first, second, third = moving()
    assert held(there.before(first))
    assert held(there.before(second))
    assert there.before(third) == RESTART
    assert there.groups.ready == {"billing": frozenset()}


def test_a_sweep_of_the_step_before_spares_the_wait() -> None:
    first, second, _ = moving()
    kept = GroupsKept({}, first.groups)
    assert Restart(kept=kept, age=WINDOW).before(second) == RESTART
    assert held(Restart(kept=kept, age=WINDOW - SAMPLE_LATER - 1).before(second))
    assert held(Restart(kept=kept, age=OLDEST).before(second))


def test_a_roll_goes_on_without_a_wait_while_its_groups_move() -> None:
    """The sweep once a broker is back is the first one for the next restart: to see that groups continue, and who makes progress."""
    there = restarted()
    assert there.observe(at(billing=LATE), DONE) == DONE
    again = Restart(kept=there.left(), age=0.5)
    assert again.before(at(billing={P0: (80, 99), P1: (90, 95)})) == RESTART
    assert again.groups.ready == {"billing": frozenset()}


def test_a_cluster_without_members_waits_for_nothing() -> None:
    there = Restart()
    assert there.before(EMPTY) == RESTART
    there.restart()
    assert there.after(None) == DONE


def test_the_baseline_is_measured_once_and_again_if_gates_closed_meanwhile() -> None:
    there = Restart()
    there.before(*moving())
    assert not there.groups.needs_sweep(ClusterView(there.now + BASELINE_FRESH - 1), RESTART)
    assert there.groups.needs_sweep(ClusterView(there.now + BASELINE_FRESH), RESTART)


def test_a_sweep_is_asked_for_only_when_it_is_due() -> None:
    there = Restart()
    assert there.groups.needs_sweep(ClusterView(1.0), RESTART)
    there.before(moving()[0])
    assert not there.groups.needs_sweep(ClusterView(there.now + SAMPLE_EVERY / 2), RESTART)
    assert there.groups.needs_sweep(ClusterView(there.now + SAMPLE_EVERY), RESTART)
    assert not there.groups.needs_sweep(ClusterView(there.now + SAMPLE_EVERY), Wait(()))
    assert not there.groups.needs_sweep(ClusterView(there.now + SAMPLE_EVERY), DONE)
    there.restart()
    assert there.groups.needs_sweep(ClusterView(there.now), DONE)


def test_sweeps_are_rarer_once_the_first_few_showed_no_progress() -> None:
    there = restarted()
    for sweep in (STILL[0], None, None, STILL[0]):
        assert held(there.after(sweep))
    assert there.groups.needs_sweep(ClusterView(there.now + SAMPLE_EVERY), DONE, end=True)
    assert held(there.after(STILL[0])), f"the last one of {SAMPLES}"
    assert not there.groups.needs_sweep(ClusterView(there.now + SAMPLE_EVERY), DONE, end=True)
    assert there.groups.needs_sweep(ClusterView(there.now + SAMPLE_LATER), DONE, end=True)


CONTINUES: Mapping[str, tuple[list[GroupSweep], list[GroupSweep]]] = {
    "it moves on, with lag": (moving(), [at(billing={P0: (n, n + 5), P1: (n, n + 5)}) for n in (40, 50, 60)]),
    "its lag is gone": (moving(), [at(billing={P0: (90, 90), P1: (90, 90)})] * 3),
    "it had lag, and caught up": (moving(), [at(billing=LATE), at(billing=LATE), at(billing={P0: (90, 90), P1: (90, 90)})]),
    "one partition moves, the other has no lag": (moving(), [at(billing={P0: (n, 99), P1: (9, 9)}) for n in (40, 50, 60)]),
    "an abandoned partition never moved before either": (
        [at(billing={P0: (n, n + 5), P1: (3, 700)}) for n in (10, 20, 30)],
        [at(billing={P0: (n, n + 5), P1: (3, 800)}) for n in (40, 50, 60)],
    ),
    "markers at the end of a quiet log": (moving(), [at(billing={P0: (40, 40 + MARKERS), P1: (30, 30)})] * 3),
    "it did not move before": ([at(billing=LATE)] * 3, STILL[:1]),
    "it was idle before": ([at(billing={P0: (31, 31)})] * 3, STILL[:1]),
    "it has joined since": ([EMPTY, EMPTY, at(billing=LATE)], STILL[:1]),
    "it never had members": ([EMPTY], STILL[:1]),
    "its members had left before the restart": ([*moving()[:2], EMPTY], STILL[:1]),
    "it was stopped during the restart, and has nothing left to read": (moving(), [without_members(P0=(90, 90))] * 2),
    "it continued, and left later": (moving(), [at(billing={P0: (40, 45)}), at(billing={P0: (50, 55)}), EMPTY, EMPTY]),
}


@pytest.mark.parametrize(("before", "after"), CONTINUES.values(), ids=CONTINUES)
def test_what_is_not_waited_for_any_longer(before: list[GroupSweep], after: list[GroupSweep]) -> None:
    found = restarted(*before).after(*after)
    assert isinstance(found, Done)
    assert found.text.startswith(DONE.text)


HELD: Mapping[str, tuple[list[GroupSweep], list[GroupSweep | None]]] = {
    "nothing moves": (moving(), [*STILL]),
    "one partition of two does not": (moving(), [at(billing={P0: (n, n + 5), P1: (31, 31 + n)}) for n in range(40, 160, 10)]),
    "few records, but the log grows": (moving(), [at(billing={P0: (31, 32 + n), P1: (9, 9)}) for n in range(12)]),
    "more than markers behind": (moving(), [at(billing={P0: (31, 32 + MARKERS), P1: (9, 9)})] * 12),
    "it was not read since": (moving(), [GroupSweep(unread=frozenset({"billing"}))] * 12),
    "its coordinator does not answer": (moving(), [GroupSweep(unresponsive=(2,))] * 12),
    "no sweep is answered": (moving(), [None] * 12),
    "its members were killed, and where it stands was not read": (moving(), [EMPTY] * 12),
    "its members were killed, and one record waits": (moving(), [without_members(P0=(90, 91))] * 12),
    "its members were killed after it was seen with lag": (
        moving(),
        [STILL[0], *[without_members(P0=(31, 90), P1=(31, 90))] * 11],
    ),
    "lag appears after the first sample": (
        moving(),
        [at(billing={P0: (31, 31)}), *[at(billing={P0: (31, 31 + 40 * n)}) for n in range(1, 12)]],
    ),
}


def found_again(after: list[GroupSweep | None]) -> GroupSweep | None:
    """The next step sees the same."""
    return after[-1]


@pytest.mark.parametrize(("before", "after"), HELD.values(), ids=HELD)
def test_what_holds_the_next_restart(before: list[GroupSweep], after: list[GroupSweep | None]) -> None:
    there = restarted(*before)
    found = [there.observe(sweep, DONE, end=True) for sweep in after]
    assert all(isinstance(one, Wait) and not one.healthy for one in found)
    assert (Cause.GROUPS_STUCK in causes(found[-1])) is (after[-1] is not None), "never seen since: nothing is said of it"
    assert Cause.GROUPS_STUCK not in causes(found[0])
    assert there.groups.awaited.keys() == {"billing"}
    assert held(Restart(kept=there.left(), age=1.0).before(found_again(after)))


def test_the_roll_continues_once_the_group_makes_progress_again() -> None:
    there = restarted()
    assert held(there.after(*STILL))
    assert there.after(at(billing={P0: (32, 99), P1: (32, 99)})) == DONE
    assert there.groups.awaited == {}


def test_steady_lag_on_ever_new_partitions_does_not_hold_for_ever() -> None:
    """Only partitions that have lag in the first samples count: a busy group always has some with a record under way."""
    there = restarted()
    found = []
    for n in range(8):
        offsets = {TopicPartition("orders", p): (100, 200 if p == n else 100) for p in range(8)}
        found.append(there.after(at(billing=offsets)))
    assert held(found[1])
    assert found[3] == DONE


def test_the_named_reason_says_group_partitions_lag_and_clients() -> None:
    there = restarted()
    there.after(*STILL[:3])
    assert there.groups.groups_to_read == ("billing",)
    clients = (
        KafkaMember("m-1", "billing-7", frozenset({P0}), "/10.1.2.3"),
        KafkaMember("m-2", "idle-8", frozenset(), "/10.9.9.9"),
    )
    found = there.after(*[replace(sweep, members={"billing": clients}) for sweep in STILL])
    assert isinstance(found, Wait)
    (reason,) = found.reasons
    assert reason.cause is Cause.GROUPS_STUCK
    for word in ("billing", "2 partitions", "118 records", "orders-0 at 31 of 90", "orders-1", "billing-7 on 10.1.2.3"):
        assert word in reason.text
    assert "idle-8" not in reason.text
    assert "Restart the clients" in reason.next_step


def test_a_groups_name_cannot_forge_a_line_of_the_log() -> None:
    there = restarted(*moving("bil\nling"))
    found = there.after(*[at(**{"bil\nling": LATE})] * 8)
    assert isinstance(found, Wait)
    assert "\n" not in found.reasons[0].text
    forged = at(**{"bil\nling": LATE})
    assert "\n" not in describe_progress(forged, forged, SPEC)


def test_without_an_owner_every_member_is_named() -> None:
    there = restarted()
    clients = (KafkaMember("m-1", "billing-7", frozenset(), "/10.1.2.3"),)
    found = there.after(*[replace(sweep, members={"billing": clients}) for sweep in STILL])
    assert isinstance(found, Wait)
    assert "billing-7 on 10.1.2.3" in found.reasons[0].text


LOST = without_members(P0=(31, 90), P1=(31, 90))


def test_a_group_that_lost_its_members_holds_until_it_is_back_and_moves() -> None:
    """Once its session is over, a client that hangs cannot be distinguished from one that was killed."""
    there = restarted()
    there.after(*STILL[:3])
    found = there.after(*[LOST] * int(10 * WITHIN / SAMPLE_LATER))
    assert isinstance(found, Wait)
    assert causes(found) == [Cause.GROUPS_STUCK]
    assert "no members any more for 195 s" in found.reasons[0].text
    assert held(there.after(*STILL[:3])), "it is back, and does not move yet"
    assert there.after(*[at(billing={P0: (n, 99), P1: (n, 99)}) for n in (50, 60)]) == DONE


def test_a_group_that_lost_its_members_is_let_go_by_name() -> None:
    there = restarted()
    there.after(*[LOST] * 4)
    again = Restart(replace(SPEC, exclude=("billing",)), there.left(), age=1.0)
    assert again.after(LOST) == DONE


def test_a_group_without_members_and_without_lag_is_kept_in_mind_and_holds_the_next_restart_once_records_wait() -> None:
    there = restarted()
    idle = without_members(P0=(90, 90), P1=(90, 90))
    end = there.after(idle, idle)
    assert isinstance(end, Done)
    assert "without members since the restart" in end.text
    again = Restart(kept=there.left(), age=1.0)
    assert isinstance(again.before(idle, idle, idle), Act)
    again.restart()
    third = Restart(kept=again.left(), age=1.0)
    assert held(third.before(idle, idle, without_members(P0=(90, 91), P1=(90, 90))))
    assert held(third.before(*[without_members(P0=(90, 91))] * 6))


EVENTS = (
    "records come",
    "it is there",
    "it commits",
    "it has no members",
    "nor is it located",
    "unread",
    "no answer",
    "new process",
)


@given(st.lists(st.sampled_from(EVENTS), max_size=25))
def test_a_group_that_has_not_continued_since_a_restart_is_never_forgotten_and_holds_while_it_has_lag(events: list[str]) -> None:
    """Whatever sweeps show, in however many processes, until it commits or is there without lag."""
    there, committed, end, continues, located = restarted(), 31, 31, False, False
    for event in events:
        if event == "new process":
            there, located = Restart(kept=there.left(), age=1.0), False
            continue
        end = 90 if event == "records come" else end
        committed += event == "it commits" and committed < end
        place = {P0: (committed, end)}
        sweep = {
            "it has no members": without_members(P0=place[P0]),
            "nor is it located": EMPTY,
            "unread": GroupSweep(unread=frozenset({"billing"})),
            "no answer": None,
        }.get(event, at(billing=place))
        is_there = bool(sweep and sweep.groups)
        continues = continues or committed > 31 or (is_there and end == 31)
        located = located or event == "it has no members"
        decision = there.observe(sweep, DONE, end=True)
        if not continues:
            assert "billing" in there.groups.awaited
            assert held(decision) or (located and end == 31)


def test_the_last_members_are_named_once_a_group_has_none() -> None:
    clients = tuple(KafkaMember(f"m-{n}", f"billing-{n}", frozenset({P0}), f"/10.1.2.{n}") for n in range(7))
    there = restarted(*[replace(sweep, members={"billing": clients}) for sweep in moving()])
    kept = there.left()
    for later in (there, Restart(kept=kept, age=1.0)):
        found = later.after(*[LOST] * 3)
        assert isinstance(found, Wait)
        assert "no members any more" in found.reasons[0].text
        assert "before the restart: billing-0 on 10.1.2.0, billing-1 on 10.1.2.1" in found.reasons[0].text
        assert "2 more" in found.reasons[0].text
    assert Restart(kept=later.left()).groups.groups_to_keep(0.0, 0.0).clients == kept.clients, "also two processes later"


def test_members_that_joined_after_the_restart_do_not_replace_the_last_ones() -> None:
    old, new = (KafkaMember(name, name, frozenset(), "/h") for name in ("old", "new"))
    there = restarted(*[replace(sweep, members={"billing": (old,)}) for sweep in moving()])
    there.after(*[replace(sweep, members={"billing": (new,)}) for sweep in STILL[:3]])
    found = there.after(LOST)
    assert isinstance(found, Wait)
    assert "before the restart: old on h" in found.reasons[0].text
    assert there.left().clients == {"billing": ("old on h",)}


def test_members_are_read_before_the_restart_of_groups_that_may_hang_after_it() -> None:
    there = Restart()
    first, second, third = moving()
    assert not list(there.groups.groups_to_read)
    there.before(first)
    assert list(there.groups.groups_to_read) == ["billing"]
    there.before(replace(second, members={"billing": ()}))
    assert not list(there.groups.groups_to_read), "once is enough"
    there.before(third)
    there.restart()
    assert there.groups.groups_to_read == ("billing",), "to know where it stands if it has lost its members"
    many = {f"g{n}": GroupPosition() for n in range(MOST_NAMED + 1)}
    assert len(Restart(kept=GroupsKept({}, many)).groups.groups_to_read) == MOST_NAMED


def test_a_group_in_endless_rebalance_is_named_with_its_state_since_when_and_who_is_missing() -> None:
    a, b = (KafkaMember(name, name, frozenset({P0}), f"/{name}.example") for name in ("a", "b"))
    there = restarted(*[replace(sweep, members={"billing": (a, b)}) for sweep in moving()])
    waiting = replace(STILL[0], rebalancing={"billing": "PreparingRebalance"}, members={"billing": (replace_partitions(a),)})
    found = there.after(*[waiting] * 8)
    assert isinstance(found, Wait)
    text = found.reasons[0].text
    for words in ("PreparingRebalance for 21 s", "members a on a.example", "missing since the restart: b on b.example"):
        assert words in text
    again = there.after(LOST, waiting)
    assert isinstance(again, Wait)
    assert "PreparingRebalance for 0 s" in again.reasons[0].text, "it had no members in between"
    stable = there.after(replace(STILL[0], members={"billing": (a, b)}))
    assert isinstance(stable, Wait)
    assert "Rebalance" not in stable.reasons[0].text


def replace_partitions(member: KafkaMember) -> KafkaMember:
    """As DescribeGroups has it in a rebalance."""
    return member._replace(partitions=frozenset())


def test_what_is_said_of_a_stopped_group_stays_in_the_next_observations() -> None:
    """A step is done only after several observations in a row, and logs the last one."""
    there, idle = restarted(), without_members(P0=(31, 31))
    assert isinstance(there.after(idle, idle), Done)
    for _ in range(2):
        assert "billing" in getattr(there.after(idle), "text", "")


def test_a_group_that_stopped_before_the_first_restart_of_a_roll_is_not_said_to_make_progress() -> None:
    """A sweep of the roll before is ten minutes old: the group moved since, and does not any more."""
    kept = GroupsKept({}, at(billing={P0: (1, 5)}, orders={P0: (1, 5)}).groups)
    there = Restart(kept=kept, age=600.0)
    sweeps = [at(billing={P0: (31, 90)}, orders={P0: (10 * n, 10 * n + 50)}) for n in range(1, 20)]
    found = [there.observe(sweep, RESTART) for sweep in sweeps]
    acts = [one for one in found if isinstance(one, Act)]
    assert held(found[int(STOPPED / SAMPLE_LATER) - 2]), "it may commit rarely"
    assert there.groups.ready == {"orders": frozenset()}
    assert "have committed nothing for 30 s, so not waited for after the restart: billing." in acts[-1].text
    there.restart()
    assert there.groups.awaited.keys() == {"orders"}


@pytest.mark.parametrize("age", [5.0, 600.0], ids=["in a roll", "first restart of a roll"])
def test_a_group_that_commits_rarely_is_waited_for(age: float) -> None:
    there = Restart(kept=GroupsKept({}, at(billing={P0: (1, 50)}).groups), age=age)
    found = [there.observe(at(billing={P0: (committed, 90)}), RESTART) for committed in (31, 31, 31, 60)]
    assert isinstance(found[-1], Act)
    assert there.groups.ready == {"billing": frozenset()}


def test_a_group_that_joined_after_the_baseline_and_moves_since_is_waited_for() -> None:
    there = Restart()
    for n in range(3):
        late = {"billing": {P0: (10 * n, 99)}} if n else {}
        found = there.observe(at(orders={P1: (10 * n, 99)}, **late), RESTART)
    assert isinstance(found, Act)
    assert there.groups.ready == {"orders": frozenset(), "billing": frozenset()}


def test_a_group_that_stops_while_another_one_is_waited_for_makes_no_progress() -> None:
    kept = GroupsKept({"orders": frozenset()}, at(billing={P0: (1, 5)}, orders={P0: (31, 90)}).groups)
    there = Restart(kept=kept, age=2.0)
    for n in range(20):
        there.observe(at(billing={P0: (10 + (n < 3), 90)}, orders={P0: (31, 90)}), RESTART)
    there.observe(at(billing={P0: (10, 90)}, orders={P0: (80, 90)}), RESTART)
    assert there.groups.ready == {"orders": frozenset()}


def test_a_group_that_is_absent_from_one_sweep_alone_is_not_over() -> None:
    there = restarted()
    assert held(there.after(EMPTY))
    assert held(there.after(*STILL[:6]))


def test_the_cluster_file_excludes_a_group_or_allows_it_lag() -> None:
    assert restarted(spec=replace(SPEC, exclude=("billing",))).after(*STILL[:1]) == DONE
    assert restarted(spec=replace(SPEC, max_lag={"billing": 59})).after(*STILL[:2]) == DONE
    assert held(restarted(spec=replace(SPEC, max_lag={"billing": 58})).after(*STILL[:3]))
    kept = GroupsKept({"billing": frozenset(), "orders": frozenset()})
    assert GroupProgress.of(replace(SPEC, exclude=("billing",)), kept).awaited.keys() == {"orders"}


def test_a_sweep_that_is_not_answered_before_the_restart_is_repeated() -> None:
    there = Restart()
    first, second, third = moving()
    found = there.before(None)
    assert isinstance(found, Wait)
    assert (found.reasons[0].code, found.healthy) == ("G00", False)
    assert there.before(first, None, second, third) == RESTART


def test_a_sweep_that_is_not_answered_once_the_broker_is_back_is_made_later() -> None:
    there = restarted()
    assert there.observe(None, DONE) == DONE
    assert there.left().base is None
    again = Restart(kept=there.left(), age=1.0)
    assert held(again.before(at(billing=LATE)))
    assert held(again.before(*STILL[:2]))
    assert again.before(at(billing={P0: (95, 99), P1: (95, 99)})) == RESTART


def test_a_group_that_stays_unread_before_the_restart_is_named_and_not_waited_for() -> None:
    there = Restart()
    sweeps = [
        replace(at(billing={P0: (10 * n, 500)}), unread=frozenset({"secret"}), unresponsive=(3,)) for n in range(MOST_SAMPLES)
    ]
    assert held(there.before(*sweeps[:-1]))
    found = there.before(sweeps[-1])
    assert isinstance(found, Act)
    assert "secret" in found.text
    assert "broker 3" in found.text
    assert there.groups.ready == {"billing": frozenset()}
    there.now += BASELINE_FRESH  # the gates were closed meanwhile
    again = there.before(sweeps[-1])
    assert isinstance(again, Act)
    assert again.text.count("secret") == 1


def test_another_process_continues_with_what_was_left() -> None:
    """Killed between the restart and the end: the groups of the baseline still hold, abandoned partitions still do not."""
    there = Restart()
    there.before(*[at(billing={P0: (n, n + 5), P1: (3, 700)}) for n in (10, 20, 30)])
    there.restart()
    kept = there.left()
    assert kept == GroupsKept({"billing": frozenset({"orders-1"})}, None, 5_000.0 - there.now)
    assert held(Restart(kept=kept).after(*[at(billing={P0: (31, 99), P1: (3, 700)})] * 5))
    assert Restart(kept=kept).after(*[at(billing={P0: (n, 99), P1: (3, 700)}) for n in (40, 50, 60)]) == DONE


def test_a_group_of_an_earlier_restart_holds_the_next_one_too() -> None:
    kept = GroupsKept({"billing": frozenset()}, at(billing=LATE).groups)
    there = Restart(kept=kept)
    assert held(there.before(*STILL[:6]))
    assert there.before(at(billing={P0: (50, 99), P1: (50, 99)})) == RESTART
    assert there.groups.ready == {"billing": frozenset()}


def test_a_group_that_was_not_read_once_the_broker_was_back_is_waited_for_in_the_next_step() -> None:
    there = restarted()
    assert there.observe(GroupSweep(unread=frozenset({"billing"})), DONE) == DONE
    again = Restart(kept=there.left(), age=1.0)
    assert held(again.before(*STILL[:4]))
    assert again.groups.awaited.keys() == {"billing"}


def test_a_process_that_finds_the_broker_back_sweeps_for_the_one_before() -> None:
    there = Restart(kept=GroupsKept({"billing": frozenset()}))
    assert there.groups.needs_sweep(ClusterView(there.now), DONE)
    assert there.observe(at(billing=LATE), DONE) == DONE
    assert there.left().base == at(billing=LATE).groups


def test_a_group_that_has_read_everything_is_waited_for_after_the_next_restart_too() -> None:
    idle = at(billing={P0: (90, 90)})
    there = Restart(kept=GroupsKept({"billing": frozenset()}, idle.groups))
    assert there.before(idle) == RESTART
    assert there.groups.ready == {"billing": frozenset()}


@pytest.mark.parametrize(
    ("age", "sweeps", "stuck"), [(WITHIN * 2, 2, False), (WITHIN * 2, 3, True), (0.0, 6, False), (0.0, 7, True)]
)
def test_a_group_is_named_after_three_sweeps_and_its_time(age: float, sweeps: int, stuck: bool) -> None:
    there = Restart(kept=GroupsKept({"billing": frozenset()}, at(billing=LATE).groups), age=age)
    found = there.before(*STILL[:sweeps])
    assert (Cause.GROUPS_STUCK in causes(found)) is stuck
    assert there.groups.groups_to_read == ("billing",)


def test_abandoned_partitions_stay_so_over_a_whole_roll() -> None:
    offsets = {P0: (31, 90), P1: (3, 700)}
    kept = GroupsKept({"billing": frozenset({"orders-1"})}, at(billing=offsets).groups)
    there = Restart(kept=kept)
    assert there.before(at(billing={P0: (60, 99), P1: (3, 800)})) == RESTART
    assert there.groups.ready == {"billing": frozenset({"orders-1"})}


def test_what_is_left_to_the_next_step_is_bounded() -> None:
    wide = at(wide={TopicPartition("t", number): (1, 1) for number in range(MOST_KEPT)}, narrow={P0: (1, 1)})
    kept = GroupsKept({"wide": frozenset(), "narrow": frozenset()}, wide.groups)
    stored = GroupsKept.from_json(kept.to_json())
    assert (stored.base or {}).keys() == {"narrow"}
    assert stored.awaited.keys() == {"narrow", "wide"}, "it is still waited for"


@pytest.mark.parametrize(
    "value",
    [{}, {"version": 3, "at": 0.0, "awaited": {}, "base": None}, {"version": 1, "at": 0, "awaited": {}, "base": {"g": [[1]]}}],
)
def test_what_another_release_left_is_an_error(value: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        GroupsKept.from_json(value)


def test_what_the_release_before_left_is_read() -> None:
    stored = {"version": 1, "at": 7.0, "awaited": {"billing": ["t-1"]}, "base": None}
    assert GroupsKept.from_json(stored) == GroupsKept({"billing": frozenset({"t-1"})}, None, 7.0)


def test_a_decision_that_another_process_carries_out_is_forgotten() -> None:
    there = Restart()
    there.before(*moving())
    assert there.groups.without_baseline().ready is None


def test_other_acts_pass_whatever_the_groups_do() -> None:
    there = restarted()
    for verb in (Verb.START, Verb.REWRITE, Verb.RESTART_LEADER, Verb.ROLL_BACK_CANARY):
        act = Act(verb, "needed")
        assert there.observe(STILL[0], act) == act


@pytest.mark.parametrize(
    ("first", "last", "words", "not_words"),
    [
        (None, EMPTY, ["was not read"], []),
        (EMPTY, EMPTY, ["0 consumer groups"], []),
        (moving()[0], moving()[1], ["1 consumer group", "all with lag make progress"], ["billing"]),
        (STILL[0], STILL[1], ["1 of 1", "billing (118 records behind)"], []),
        (at(billing={P0: (1, 1 + MARKERS)}), at(billing={P0: (1, 1 + MARKERS)}), ["all with lag"], []),
        (at(idle={P0: (1, 1)}), replace(at(idle={P0: (1, 1)}), unresponsive=(1,)), ["all with lag", "Not every group"], []),
    ],
)
def test_watch_says_which_groups_do_not_move(
    first: GroupSweep | None, last: GroupSweep, words: list[str], not_words: list[str]
) -> None:
    said = describe_progress(first, last, SPEC)
    assert all(word in said for word in words)
    assert not any(word in said for word in not_words)
    assert "billing" not in describe_progress(first, last, replace(SPEC, exclude=("billing",)))
