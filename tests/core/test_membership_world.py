"""Random histories of members, old consumers, sessions and modes: never two for one partition, nothing skipped, and rest at the end."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import Assigned, Strategy, assign, assign_streams
from airflow_provider_kmigrate.core.member.messages import Closing
from airflow_provider_kmigrate.core.member.registration import Mode, Registration, read_registration
from tests.core.member_shell import Node, Shell
from tests.core.member_world import OldConsumer, World

TOPICS = {"t": range(3), "u": range(2)}
WANTED = st.sampled_from(
    [Registration("static", {"t": 1}), Registration("static", {"t": 2, "u": 1}), Registration("white_list", {"t|u": 1})]
)
CHOICE = st.integers(0, 7)


class Members(RuleBasedStateMachine):
    @initialize(
        strategy=st.sampled_from([Strategy.RANGE, Strategy.ROUND_ROBIN]),
        members=st.lists(WANTED, min_size=1, max_size=3),
        old=st.lists(WANTED, max_size=1),
        mode=st.sampled_from([b"kafka", None]),
    )
    def begin(self, strategy: Strategy, members: list[Registration], old: list[Registration], mode: bytes | None) -> None:
        """A group at rest, so that what follows has something to break."""
        self.world, self.strategy, self.made = World(TOPICS), strategy, 0
        self.world.set_mode(mode)
        for wanted in members:
            Shell(self.world, self._name(), wanted, strategy)
        for wanted in old:
            OldConsumer(self.world, self._name(), wanted, strategy)
        self.world.quiesce()
        for party in (*self.world.members.values(), *self.world.old.values()):
            party.deliver()

    def _name(self) -> str:
        self.made += 1
        return f"g_c-{self.made}"

    def _shell(self, choice: int) -> Shell | None:
        names = sorted(self.world.members)
        return self.world.members[names[choice % len(names)]] if names else None

    def _old(self, choice: int) -> OldConsumer | None:
        names = sorted(self.world.old)
        return self.world.old[names[choice % len(names)]] if names else None

    # -------------------------------------------------------------------------------------------- who comes and goes

    @rule(wanted=WANTED)
    def member_joins(self, wanted: Registration) -> None:
        if len(self.world.members) < 3:
            Shell(self.world, self._name(), wanted, self.strategy)

    @rule(wanted=WANTED)
    def old_consumer_joins(self, wanted: Registration) -> None:
        if len(self.world.old) < 2:
            OldConsumer(self.world, self._name(), wanted, self.strategy)

    @rule(choice=CHOICE, killed=st.booleans())
    def old_consumer_leaves(self, choice: int, killed: bool) -> None:
        old = self._old(choice)
        if old:
            old.close(killed=killed)

    @rule(choice=CHOICE)
    def member_closes(self, choice: int) -> None:
        shell = self._shell(choice)
        if shell:
            shell.tell(Closing())

    @rule(choice=CHOICE)
    def member_is_killed(self, choice: int) -> None:
        shell = self._shell(choice)
        if shell and len(self.world.members) > 1:
            del self.world.members[shell.name]

    # --------------------------------------------------------------------------------------------------------- faults

    @rule(choice=CHOICE, noticed=st.booleans())
    def member_is_cut_off(self, choice: int, noticed: bool) -> None:
        shell = self._shell(choice)
        if shell:
            shell.cut_off(noticed=noticed)

    @rule(choice=CHOICE)
    def member_is_connected_again(self, choice: int) -> None:
        shell = self._shell(choice)
        if shell:
            shell.cut = False
            shell.ping()

    @rule(choice=CHOICE, paused=st.booleans())
    def member_process_is_stopped_or_goes_on(self, choice: int, paused: bool) -> None:
        shell = self._shell(choice)
        if shell:
            shell.paused = paused

    @rule(choice=CHOICE, cut=st.booleans(), seconds=st.sampled_from([4.5, 7.0, 13.0]), rounds=st.integers(5, 30))
    def member_sleeps_or_is_alone_for_a_while(self, choice: int, cut: bool, seconds: float, rounds: int) -> None:
        """Long enough for others to take its place; then it goes on where it was, before it has heard of anything."""
        shell = self._shell(choice)
        if shell:
            shell.paused, shell.cut, shell.known_cut = not cut, cut or shell.cut, cut or shell.known_cut
            self.world.pass_time(seconds)
            self.all_go_on(rounds)
            shell.paused = shell.cut = False
            self.one_owner()

    @rule(choice=CHOICE)
    def member_loses_kafka(self, choice: int) -> None:
        shell = self._shell(choice)
        if shell:
            self.world.coordinator.lose(shell.name)

    @rule(there=st.booleans())
    def an_unreadable_registration(self, there: bool) -> None:
        self.world.zk.ids.pop("pykafka", None)
        if there:
            self.world.zk.ids["pykafka"] = Node(0, read_registration(b"t"))
        self.world.changed(ids=True)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.5, 4.5, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(data=st.sampled_from([b"kafka", b"kafka", b"zookeeper", b"kafka\n", None]))
    def mode_is_set(self, data: bytes | None) -> None:
        self.world.set_mode(data)

    @rule(choice=CHOICE, data=st.sampled_from([b"kafka", None]), steps=st.integers(0, 4))
    def mode_is_set_and_a_member_loses_one_of_its_two_places_in_kafka(self, choice: int, data: bytes | None, steps: int) -> None:
        """While its list of assignors changes it has two embedded consumers; what it wants under that mode may be claimed already."""
        self.world.set_mode(data)
        shell = self._shell(choice)
        for _ in range(steps if shell else 0):
            shell.act()
            shell.hear()
            self.one_owner()
        if shell:
            self.world.coordinator.change_over(shell.name)

    # ---------------------------------------------------------------------------------------------------------- steps

    @rule(choice=CHOICE, which=CHOICE, steps=st.integers(1, 12))
    def member_hears(self, choice: int, which: int, steps: int) -> None:
        for _ in range(steps):
            shell = self._shell(choice)
            if shell:
                shell.hear(which)
                self.one_owner()

    @rule(choice=CHOICE, which=CHOICE, steps=st.integers(1, 12))
    def member_acts(self, choice: int, which: int, steps: int) -> None:
        for _ in range(steps):
            shell = self._shell(choice)
            if shell:
                shell.act(which)
                self.one_owner()

    @rule(choice=CHOICE, steps=st.integers(1, 6))
    def old_consumer_goes_on(self, choice: int, steps: int) -> None:
        for _ in range(steps):
            old = self._old(choice)
            if old:
                old.once()
                self.one_owner()

    @rule()
    def kafka_goes_on(self) -> None:
        self.world.coordinator.once()

    @rule(rounds=st.integers(1, 20))
    def all_go_on(self, rounds: int) -> None:
        world = self.world
        for _ in range(rounds):
            for party in (*world.members.values(), *world.old.values(), world.coordinator):
                party.once()
                self.one_owner()

    @rule()
    def records_are_delivered(self) -> None:
        for party in (*self.world.members.values(), *self.world.old.values()):
            party.deliver()

    @rule(choice=CHOICE)
    def application_commits(self, choice: int) -> None:
        shell = self._shell(choice)
        if shell:
            shell.commit()

    @rule(
        choice=CHOICE,
        takes=st.lists(st.booleans(), min_size=1, max_size=3),
        seconds=st.sampled_from([0.1, 1.0, 2.5]),
        which=CHOICE,
    )
    def application_works_while_the_coordinator_falters(self, choice: int, takes: list[bool], seconds: float, which: int) -> None:
        """Some commits fail, and what the application asks for next may be under way when they are due again, or when they take effect."""
        shell = self._shell(choice)
        for taken in takes if shell else ():
            self.world.kafka_takes = taken
            shell.deliver()
            shell.commit()
            for _ in range(6):
                shell.hear(which)
            self.world.pass_time(seconds)
            for step in (shell.hear, shell.act):
                for i in range(12):
                    step(which + i)
                    self.one_owner()
        if takes[-1]:
            self.world.lands(which)

    # ----------------------------------------------------------------------------------------------------- what holds

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def one_owner(self) -> None:
        deliverers = self.world.deliverers()
        for where in self.world.places():
            assert len(deliverers[where]) <= 1, f"{where} is delivered by {deliverers[where]}"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.zk.ids.pop("pykafka", None)
        world.quiesce()
        for name in [name for name, shell in world.members.items() if shell.member.closed]:
            del world.members[name]
        for old in world.old.values():  # one that had given up needs an event, as in reality (R17)
            old.triggered = True
        world.quiesce()
        self.one_owner()
        expected = self._expected()
        assert {where: world.deliverers()[where] for where in expected} == {
            where: [thread.rpartition("-")[0]] for where, thread in expected.items()
        }
        assert {where: node.data for where, node in world.zk.owners.items()} == expected
        assert all(shell.member.settled for shell in world.members.values())
        self._both_stores_agree()

    def _both_stores_agree(self) -> None:
        """Both have the holder's offset: or a plain consumer that takes over would begin at another place than an old one."""
        assert self.stored() == self.held()

    def stored(self) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """What ZooKeeper and Kafka have for each partition that a member delivers."""
        world = self.world
        return {where: (world.zk.offsets.get(where, (None, -1))[0], world.kafka_offsets.get(where)) for where in self.held()}

    def held(self) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """What both must have: the holder's last commit, or where it began."""
        found = {where: shell.member.held[where] for shell in self.world.members.values() for where in shell.active}
        return {where: (held.began if held.last is None else held.last,) * 2 for where, held in found.items()}

    def _expected(self) -> dict:
        """Who must own what, by the mode and the assignor of it."""
        world = self.world
        registrations = {name: node.data for name, node in world.zk.ids.items()}
        if world.members and next(iter(world.members.values())).member.mode is Mode.KAFKA:
            found = {}
            for name, places in world.coordinator.assignment.items():
                shell = world.members[name]
                wanted = {topic: _streams(shell, topic) for topic in world.coordinator.topics(name)}
                found |= assign_streams(name, wanted, places)
            return found
        assigned = assign(self.strategy, registrations, TOPICS)
        assert isinstance(assigned, Assigned)
        return dict(assigned.owners)


def _streams(shell: Shell, topic: str) -> int:
    subscription = shell.member.settings.registration.subscription
    return subscription.get(topic, next(iter(subscription.values())))


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=150, stateful_step_count=40)


def test_a_claim_that_finds_the_znode_of_an_earlier_one_of_its_own_names_the_right_stream() -> None:
    """Another member closes while a claim for one stream waits; the next claim is for the other stream, and the first one worked."""
    state = Members()
    one, two = ({"t": 1}, {"t": 2, "u": 1})
    members = [Registration("static", one, ""), Registration("static", two, "")]
    state.begin(strategy=Strategy.RANGE, members=members, old=[Registration("static", one, "")], mode=b"kafka")
    state.time_passes(seconds=7.0)
    state.member_closes(choice=0)
    state.time_passes(seconds=0.1)
    state.member_hears(choice=1, steps=1, which=1)
    state.teardown()
    assert {node.data for node in state.world.zk.owners.values()} == {"g_c-2-0", "g_c-2-1", "g_c-3-0"}


def _at_rest(mode: bytes | None = b"kafka", members: int = 1) -> Members:
    state = Members()
    state.begin(strategy=Strategy.RANGE, members=[Registration("static", {"t": 1})] * members, old=[], mode=mode)
    return state


def test_a_commit_that_was_given_up_and_takes_effect_later_is_committed_over() -> None:
    state = _at_rest()
    state.application_works_while_the_coordinator_falters(choice=0, takes=[False, True], seconds=1.0, which=0)
    assert len(set(state.world.kafka_offsets.values())) == 2, "one partition's went back"
    state.teardown()


def test_an_owed_commit_and_a_newer_one_under_way_end_with_the_newer_one() -> None:
    for seconds in (0.1, 1.0):
        state = _at_rest()
        state.application_works_while_the_coordinator_falters(choice=0, takes=[False], seconds=0.1, which=0)
        state.application_works_while_the_coordinator_falters(choice=0, takes=[True], seconds=seconds, which=0)
        state.teardown()
        assert state.stored() == state.held()


@pytest.mark.parametrize("steps", range(0, 12, 2))
def test_a_membership_in_kafka_that_is_lost_in_the_middle_of_a_mode_switch_leaves_both_stores_written(steps: int) -> None:
    state = _at_rest(mode=None, members=2)
    state.mode_is_set_and_a_member_loses_one_of_its_two_places_in_kafka(choice=0, data=b"kafka", steps=steps)
    state.world.quiesce()
    for shell in state.world.members.values():
        shell.deliver()
        shell.commit()
    state.teardown()
    assert state.stored() == state.held()


def test_a_late_commit_of_the_holder_before_is_committed_over_by_one_that_only_began() -> None:
    """It takes effect after the next holder has read the offsets, which then has nothing to commit of its own."""
    state = _at_rest(members=3)
    state.member_closes(choice=0)
    state.old_consumer_joins(wanted=Registration("static", {"t": 1}))
    state.all_go_on(rounds=6)
    state.application_works_while_the_coordinator_falters(choice=1, seconds=0.1, takes=[False] * 3, which=0)
    state.application_works_while_the_coordinator_falters(choice=0, seconds=0.1, takes=[False, True], which=0)
    state.all_go_on(rounds=16)
    state.application_works_while_the_coordinator_falters(choice=0, seconds=0.1, takes=[True], which=0)
    where = TopicPartition("t", 1)
    assert state.world.kafka_offsets[where] < state.world.zk.offsets[where][0], "it went back"
    state.teardown()


def _apart(
    strategy: Strategy = Strategy.RANGE, members: int = 2, mode: bytes | None = b"kafka", *, later: bytes | None = b"kafka"
) -> Members:
    """A member that has lost its session without notice commits to both stores; the old consumer in its place then writes less to ZooKeeper."""
    wanted = Registration("static", {"t": 1})
    state = Members()
    state.begin(strategy=strategy, members=[wanted] * members, old=[wanted], mode=mode)
    state.application_works_while_the_coordinator_falters(choice=0, seconds=2.5, takes=[False], which=1)
    state.member_is_cut_off(choice=1, noticed=False)
    state.old_consumer_joins(wanted=wanted)
    if later != mode:
        state.mode_is_set(data=later)
    state.application_works_while_the_coordinator_falters(choice=1, seconds=0.1, takes=[False], which=0)
    state.member_sleeps_or_is_alone_for_a_while(choice=1, cut=False, rounds=5, seconds=4.5)
    state.application_works_while_the_coordinator_falters(choice=0, seconds=0.1, takes=[False], which=0)
    state.member_acts(choice=1, steps=1, which=0)
    return state


@pytest.mark.parametrize("strategy", [Strategy.RANGE, Strategy.ROUND_ROBIN])
@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize(("mode", "later"), [(b"kafka", b"kafka"), (None, None), (b"kafka", b"zookeeper"), (None, b"kafka")])
def test_a_store_that_an_earlier_holder_left_behind_gets_the_start(
    strategy: Strategy, members: int, mode: bytes | None, later: bytes | None
) -> None:
    """The next holder begins at the larger offset and commits nothing of its own: both stores have that offset all the same."""
    state = _apart(strategy, members, mode, later=later)
    state.teardown()
    assert state.stored() == state.held()


@pytest.mark.parametrize("late", [0, 2, 9])
@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("mode", [b"kafka", None])
@pytest.mark.parametrize("members", [2, 3])
def test_a_late_commit_that_takes_effect_after_the_next_holders_start_or_first_commit_is_committed_over(
    members: int, mode: bytes | None, late: int, *, old: bool, commits: bool
) -> None:
    """Smaller or larger than where the next holder began, and whether it has committed since or not."""
    state = _at_rest(mode, members)
    state.all_go_on(rounds=10)
    state.records_are_delivered()
    for choice in range(members):
        state.application_commits(choice=choice)
    state.world.quiesce()
    before = {where for shell in list(state.world.members.values())[1:] for where in shell.active}
    state.member_closes(choice=0)
    if old:
        state.old_consumer_joins(wanted=Registration("static", {"t": 1}))
    state.all_go_on(rounds=40)
    if commits:
        state.records_are_delivered()
        state.application_commits(choice=0)
        state.application_commits(choice=1)
        state.all_go_on(rounds=5)
    taken_over = {where for shell in state.world.members.values() for where in shell.active} - before
    assert taken_over
    for where in taken_over:
        state.world.given_up.append((state.world.now, where, late))
        state.world.lands(0)
    state.teardown()


def test_a_claim_under_way_when_a_session_ends_leaves_no_znode_of_the_next_one() -> None:
    """It works in the next session, of which the member has not heard yet: an old consumer would wait for that znode for ever."""
    state, one = Members(), Registration("static", {"t": 1})
    state.begin(strategy=Strategy.RANGE, members=[one, one], old=[one], mode=b"kafka")
    state.time_passes(seconds=7.0)
    state.application_works_while_the_coordinator_falters(choice=0, seconds=0.1, takes=[False] * 3, which=0)
    state.application_commits(choice=1)
    state.application_commits(choice=1)
    state.member_closes(choice=0)
    state.old_consumer_joins(wanted=one)
    state.time_passes(seconds=7.0)
    state.application_works_while_the_coordinator_falters(choice=1, seconds=0.1, takes=[False] * 2, which=1)
    state.teardown()
    assert state.world.deliverers()[TopicPartition("t", 1)] == ["g_c-3"], "the old consumer has it"


def test_a_claim_that_worked_in_a_session_not_heard_of_yet_is_released_once_it_is_not_wanted() -> None:
    """The answer names a session that the member does not know: the znode is its own all the same, and no other process would delete it."""
    two, list_ = Registration("static", {"t": 2, "u": 1}, ""), Registration("white_list", {"t|u": 1}, "")
    state = Members()
    state.begin(strategy=Strategy.ROUND_ROBIN, members=[two, list_], old=[], mode=b"kafka")
    state.time_passes(seconds=2.5)
    state.member_is_connected_again(choice=4)
    state.member_loses_kafka(choice=6)
    state.application_works_while_the_coordinator_falters(choice=3, seconds=1.0, takes=[False], which=5)
    state.time_passes(seconds=1.0)
    state.time_passes(seconds=7.0)
    state.old_consumer_joins(wanted=list_)
    state.application_works_while_the_coordinator_falters(choice=6, seconds=2.5, takes=[True, False], which=5)
    state.teardown()
    assert state.stored() == state.held()
