"""What a systemd unit of Kafka ends beside its own process, what hangs on it, and the drop-in that it needs.

`shown` is `systemctl show` of the unit, as the agent reports it: commands one a line, without their quotes. `node install` runs this file
on machines, too: Python 3.6 and its library only.
"""

import re
from math import inf
from typing import Dict, Iterable, List, Mapping, Optional, Pattern, Sequence

KAFKA_STOPS = 300.0  # seconds that a broker in migration mode may take to stop (measured: 300.8)
DROP_IN = "kmigrate.conf"
ASKED = "TimeoutStopUSec,KillMode,KillSignal,SuccessExitStatus,ExecStop,ExecStopPost,DropInPaths"  # of systemd, for a drop-in
_STOP_TIMEOUT = 600  # seconds
_HEAD = "# Written by `kmigrate node install --drop-in write`; `--drop-in remove` removes it.\n[Service]\n"
#: Seconds of systemd.time(7)'s units.
_SYSTEMD = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3_600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "month": 2_629_800.0,
    "y": 31_557_600.0,
}
_STOPS, _PREPARES = ("ExecStop", "ExecStopPost"), ("ExecStartPre", "ExecStartPost")
# Since Kafka 3.7 two options choose a process (KIP-979); whatever else the script is given it ignores, a properties file too.
_SCRIPT = re.compile(r"kafka-server-stop(?:\.sh)?(?![\w.-])(?!.*--(?:node-id|process-role)=)")
_CHOOSES = re.compile(r"--(?:node-id|process-role)=|--pidfile|MAINPID|\.properties|\.pid\b|\s-[FP]\s")
_KILLS_BY_NAME, _KILL = re.compile(r"\b(?:pkill|killall)\b", re.IGNORECASE), re.compile(r"\bkill\b", re.IGNORECASE)
_LISTS, _KAFKA = re.compile(r"\b(?:pgrep|pidof|ps|jps)\b", re.IGNORECASE), re.compile("kafka|java", re.IGNORECASE)
#: Words of a command that searches for every Kafka of the machine and ends it, in their order. One pattern for all of them would take
#: cubic time, and an agent sends the commands.
_SEARCHES = ((_KILLS_BY_NAME, _KAFKA), (_KILL, _LISTS, _KAFKA), (_LISTS, _KAFKA, _KILL))
_HARMLESS = re.compile(
    r"(?:\S*/)?(?:(?:ba|da)?sh -l?c (?:\S*/)?)?(?:true|sleep|rm|touch|echo|logger|test|kill)\b[^;&|]*$|.*MAINPID"
)
_ENDS_NOTHING = re.compile(r"(?:\S*/)?(?:true|sleep|rm|touch|echo|logger|test)\b[^;&|]*$")
_CONTAINERS = ("docker", "podman", "nerdctl", "docker-compose", "podman-compose")
_CONTAINER_VERBS = ("stop", "restart", "down", "kill", "rm", "exec", "run")
_CONTAINER_SECONDS = "10"  # of a stop without an option
_TIME_OPTIONS, _RETRY_OPTIONS = ("-t", "--time", "--timeout"), ("-R", "--retry")
_SIGKILL = (re.compile(r"\b(?:p?kill|killall)\b"), re.compile(r"\s-(?:s\s*)?(?:9|KILL|SIGKILL)\b"))
_KAFKA_STOPS_ON = ("", "1", "2", "15")  # HUP, INT, TERM
_NEEDS = ("Requires", "Requisite", "BindsTo", "PartOf", "StopPropagatedFrom")
_NEEDED_BY = ("RequiredBy", "BoundBy", "ConsistsOf")
_ZOOKEEPER = re.compile(r"zookeeper|(?:^|[-_])zk(?:$|[-_.@\d])", re.IGNORECASE)


def systemd_seconds(text: str) -> Optional[float]:
    """Seconds of a time as `systemctl show` prints it (`1min 30s`, `infinity`); None for anything else."""
    if text == "infinity":
        return inf
    parts = [re.match(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)$", word) for word in text.split()]
    seconds = [float(part.group(1)) * _SYSTEMD[part.group(2)] for part in parts if part and part.group(2) in _SYSTEMD]
    return sum(seconds) if seconds and len(seconds) == len(parts) else None


def ends_every_kafka(command: str) -> bool:
    """Whether a command ends every broker and controller of its machine, and not its own unit's alone."""
    is_search = any(_occur_in_order(command, words) for words in _SEARCHES)
    return bool(_SCRIPT.search(command) or (is_search and not _CHOOSES.search(command)))


def _occur_in_order(command: str, words: Sequence[Pattern[str]]) -> bool:
    """Whether each of these is in the command, behind the one before it."""
    at = 0
    for word in words:
        found = word.search(command, at)
        if found is None:
            return False
        at = found.end()
    return True


def list_commands(shown: Mapping[str, str], name: str) -> List[str]:
    """The command lines of an `Exec...` setting."""
    return [line for line in shown.get(name, "").splitlines() if line.strip()]


def find_reaching_commands(shown: Mapping[str, str]) -> List[str]:
    """`ExecStop=/opt/kafka/bin/kafka-server-stop.sh`: what a start or stop of the unit runs, and ends every Kafka of the machine."""
    return [name + "=" + line for name in _STOPS + _PREPARES for line in list_commands(shown, name) if ends_every_kafka(line)]


def find_unclear_commands(shown: Mapping[str, str]) -> List[str]:
    """What a stop of the unit runs, and does not show whom it ends: a script of its own."""
    commands = [(name, line) for name in _STOPS for line in list_commands(shown, name)]
    return [name + "=" + line for name, line in commands if not ends_every_kafka(line) and not _is_clear(line)]


def _is_clear(command: str) -> bool:
    return bool(_HARMLESS.match(command) or _CHOOSES.search(command))


def find_ending_commands(shown: Mapping[str, str]) -> List[str]:
    """The commands of `ExecStop=` that may end Kafka; `/bin/sleep 5` does not: systemd's signal does it afterwards."""
    return [line for line in list_commands(shown, "ExecStop") if not _ENDS_NOTHING.match(line)]


def find_kill(shown: Mapping[str, str], behind: bool = False) -> str:
    """How a stop of the unit kills Kafka before it has stopped, whatever its timeout; empty if it does not.

    `behind`: Kafka is a child of the unit's main process, at whose end KillMode=mixed kills it (measured).
    """
    if behind and shown.get("KillMode") == "mixed" and not find_ending_commands(shown):
        return "KillMode=mixed"
    if shown.get("KillSignal", "") not in _KAFKA_STOPS_ON:
        return "KillSignal=" + shown["KillSignal"]
    commands = list_commands(shown, "ExecStop")
    return next(("ExecStop=" + line for line in commands if _occur_in_order(line, _SIGKILL) or _kills_early(line)), "")


def _kills_early(command: str) -> bool:
    """Whether a command stops Kafka with a time limit of its own that is no longer than Kafka's, and kills it then."""
    words = [word.strip("\"';&|()") for word in command.split()]
    programs = [word.rpartition("/")[2] for word in words]
    container = _words_behind(words, programs, _CONTAINERS)
    verb = next((word for word in container if word in _CONTAINER_VERBS), "")
    if verb == "kill":
        return _find_option(container, ("-s", "--signal")).upper() in ("", "KILL", "SIGKILL", "9")
    if verb == "rm":
        return "-f" in container or "--force" in container
    if verb in ("stop", "restart", "down"):
        seconds = _find_option(container, _TIME_OPTIONS) or _CONTAINER_SECONDS
        return seconds.isdigit() and float(seconds) <= KAFKA_STOPS  # -1: never
    return _kills_at_last(_find_option(_words_behind(words, programs, ("start-stop-daemon",)), _RETRY_OPTIONS))


def _words_behind(words: Sequence[str], programs: Sequence[str], wanted: Sequence[str]) -> Sequence[str]:
    """The words behind the first one that is one of these programs; none without it."""
    return next((words[at + 1 :] for at, program in enumerate(programs) if program in wanted), ())


def _find_option(words: Sequence[str], names: Sequence[str]) -> str:
    """The value of an option, as `-t 60`, `-t60` or `--time=60`; empty without it."""
    for at, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in names:
            return value or "".join(words[at + 1 : at + 2])
        if word[:2] in names and word[2:].isdigit():
            return word[2:]
    return ""


def _kills_at_last(schedule: str) -> bool:
    """start-stop-daemon(8): a number alone is TERM, that time, KILL; else signals and seconds in turn."""
    steps = schedule.split("/")
    if len(steps) == 1:
        return steps[0].isdigit() and float(steps[0]) <= KAFKA_STOPS
    waited = 0.0
    for step in steps:
        if step.lstrip("-").upper() in ("KILL", "SIGKILL", "9"):
            return waited <= KAFKA_STOPS
        waited += float(step) if step.isdigit() else 0.0
    return False


def find_missing_stop(shown: Mapping[str, str], behind: bool) -> str:
    """Why a stop of the unit leaves Kafka running (measured); empty if it does not."""
    mode = shown.get("KillMode", "")
    is_left = mode == "none" or (mode == "process" and behind)
    return "KillMode=" + mode if is_left and not find_ending_commands(shown) else ""


def find_zookeeper_needs(shown: Mapping[str, str]) -> List[str]:
    """`Requires=zookeeper.service`: the settings by which a stop of ZooKeeper stops this unit."""
    return [name + "=" + unit for name in _NEEDS for unit in _list_services(shown, name) if _ZOOKEEPER.search(unit)]


def find_dependents(shown: Mapping[str, str]) -> List[str]:
    """The services that systemd stops with this unit, and does not start again with it."""
    return sorted({unit for name in _NEEDED_BY for unit in _list_services(shown, name)})


def is_of_cluster(unit: str) -> bool:
    """Whether a service's name is one of Kafka or ZooKeeper themselves, as far as a name says it."""
    return bool(
        _ZOOKEEPER.search(unit) or re.match(r"(?:confluent-)?kafka(?:-(?:server|broker|controller))?(?:@.*)?\.service$", unit)
    )


def find_conflicts(shown: Mapping[str, str]) -> List[str]:
    """The services that systemd stops when this unit starts, and at whose start it stops this unit."""
    return sorted({unit for name in ("Conflicts", "ConflictedBy") for unit in _list_services(shown, name)})


def is_of_zookeeper(unit: str) -> bool:
    """Whether a service's name is one of ZooKeeper."""
    return bool(_ZOOKEEPER.search(unit))


def find_closed(shown: Mapping[str, str], folder: str) -> str:
    """The setting by which the unit's process cannot write in a folder that others see there; empty if none is known."""
    if shown.get("PrivateTmp") in ("yes", "connected", "disconnected") and _is_below(folder, ["/tmp", "/var/tmp"]):  # noqa: S108 # of the unit
        return "PrivateTmp=" + shown["PrivateTmp"]
    opened = [path.lstrip("-+") for path in shown.get("ReadWritePaths", "").split()]
    opened += ["/var/lib/" + name.partition(":")[0] for name in shown.get("StateDirectory", "").split()] + [
        "/dev",
        "/proc",
        "/sys",
    ]
    return "ProtectSystem=strict" if shown.get("ProtectSystem") == "strict" and not _is_below(folder, opened) else ""


def _is_below(folder: str, paths: Iterable[str]) -> bool:
    return any((folder.rstrip("/") + "/").startswith(path.rstrip("/") + "/") for path in paths)


def _list_services(shown: Mapping[str, str], name: str) -> List[str]:
    return [unit for unit in shown.get(name, "").split() if unit.endswith(".service")]


def find_settings(shown: Mapping[str, str], stop_timeout: float) -> Dict[str, str]:
    """What the unit's drop-in must set, empty for nothing. `stop_timeout`: seconds that kmigrate waits for a stop.

    A setting with a command that is not known beside one that reaches too far is left to its administrator.
    """
    settings = {}
    after = systemd_seconds(shown.get("TimeoutStopUSec", ""))
    if after is not None and after <= max(KAFKA_STOPS, stop_timeout):
        settings["TimeoutStopSec"] = str(max(_STOP_TIMEOUT, int(stop_timeout) + 60))
    for name in _STOPS:
        commands = list_commands(shown, name)
        if any(map(ends_every_kafka, commands)) and all(ends_every_kafka(line) or _is_clear(line) for line in commands):
            settings[name] = ""
    has_command = bool(find_ending_commands(shown)) and "ExecStop" not in settings
    if not has_command and shown.get("KillMode", "control-group") != "control-group":
        settings["KillMode"] = "control-group"  # without a command, systemd's signal must reach Kafka behind any shell
    if shown.get("KillSignal", "") not in _KAFKA_STOPS_ON:
        settings["KillSignal"] = "SIGTERM"
    if settings and not has_command and "143" not in shown.get("SuccessExitStatus", "").split():
        settings["SuccessExitStatus"] = "143"  # of a JVM after SIGTERM; upon success systemd would run a command, too (measured)
    return settings


def read_settings(text: str) -> Dict[str, str]:
    """The settings of a drop-in, the last of each."""
    lines = [line.strip() for line in text.splitlines() if not line.strip().startswith(("#", ";", "["))]
    return {name.strip(): value.strip() for name, is_set, value in (line.partition("=") for line in lines) if is_set}


def render_drop_in(settings: Mapping[str, str], present: str = "") -> str:
    """The drop-in's text. What it set before it sets further on: the unit shows no need of it, because it is there."""
    merged = dict(read_settings(present), **settings)
    return _HEAD + "".join("%s=%s\n" % setting for setting in merged.items()) if merged else ""


def find_contradictions(settings: Mapping[str, str], others: Mapping[str, str]) -> List[str]:
    """Drop-ins of others that systemd reads after ours and that set the same: `path: TimeoutStopSec=90`. `others`: text by path."""
    said = []
    for path, text in sorted(others.items()):
        if path.rpartition("/")[2] > DROP_IN:
            said += [
                path + ": " + name + "=" + value for name, value in read_settings(text).items() if _full_name(name) in settings
            ]
    return said


def _full_name(name: str) -> str:
    return "TimeoutStopSec" if name == "TimeoutSec" else name


def join_repeated(lines: Iterable[str]) -> Dict[str, str]:
    """`shown` of what `systemctl show` prints: commands of one setting are lines of their own there."""
    shown = {}  # type: Dict[str, str]
    for name, _, value in (line.partition("=") for line in lines):
        if name.startswith("Exec"):
            found = re.findall(r"argv\[\]=(.*?) ; (?:ignore_errors|flags)=", value) or [value]
            shown[name] = "\n".join(line for line in [shown.get(name, "")] + found if line)
        else:
            shown[name] = value
    return shown
