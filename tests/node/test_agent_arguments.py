"""Java's arguments from files and variables, and JAAS files, as the agent reads them: the real launcher and Java's own parser are the judges."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.core.node_files.jaas import read_login_modules
from tests.node.agent_parts import agent_module, needs_root
from tests.node.machine import SH, Node
from tests.waiting import wait_for

JAVA = shutil.which("java")
needs_java = pytest.mark.skipif(JAVA is None, reason="needs a Java runtime")

#: Files of arguments; NAME is another one in each.
FILES = [
    "-DNAME.a=1 -DNAME.b=2",
    "-DNAME.a=1\n-DNAME.b=2\r\n-DNAME.c=3\f-DNAME.d=4\t-DNAME.e=5",
    '-DNAME.a="a b" "-DNAME.b=c d" -DNAME.c=\'e "f\' -DNAME.d="g \'h"',
    '"-DNAME.a=x "y -DNAME.b=z',
    "# a comment -DNAME.a=1\n-DNAME.b=2 # -DNAME.c=3\n-DNAME.d=4",
    "-DNAME.a=1#2 -DNAME.b=3\n-DNAME.c=4",
    '-DNAME.a="1#2" -DNAME.b=3',
    '-DNAME.a="an open quote\n-DNAME.b=2',
    '-DNAME.a="con\\\n   tinued" -DNAME.b=2',
    '-DNAME.a="con\\\r\n   tinued" -DNAME.b=2',
    '-DNAME.a=c:\\new\\x -DNAME.b="c:\\\\new" -DNAME.c="t\\tab" -DNAME.d="\\"quoted\\"" -DNAME.e=\'it\\\'s\'',
    "-DNAME.a -DNAME.b= -DNAME.c==x",
    "-DNAME.a=\vb -DNAME.c=ü",
]
#: Values of JDK_JAVA_OPTIONS and of JAVA_TOOL_OPTIONS.
VALUES = ["-DNAME.a='b c' -DNAME.d=e#f", '-DNAME.a="b\\c"\t-DNAME.d=e', "-DNAME.a=b\n-DNAME.c=d  -DNAME.e"]


def named(text: str, number: int) -> str:
    return text.replace("NAME", f"zookeeper.n{number}")


def properties_of(java_says: str) -> dict[str, str]:
    return {
        name: value.rstrip("\n") for name, value in re.findall(r"^    (zookeeper\.n\d+\.\w) = (.*)$", java_says, re.MULTILINE)
    }


def ask_java(*arguments: str, **environment: str) -> dict[str, str]:
    """The properties that a real JVM has."""
    argv = [str(JAVA), *arguments, "-XshowSettings:properties", "-version"]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=True, env=os.environ | {"LC_ALL": "C.UTF-8"} | environment)
    return properties_of(done.stderr.decode())


def switches_in(words: list[str]) -> dict[str, str]:
    switches = (agent_module().SWITCH.match(word) for word in words)
    return {switch.group(1): switch.group(2) for switch in switches if switch}


@needs_java
def test_files_of_arguments_are_split_as_the_launcher_splits_them(tmp_path: Path) -> None:
    paths, ours = [], dict[str, str]()
    for number, text in enumerate(FILES):
        path = tmp_path / f"{number}.args"
        path.write_bytes(named(text, number).encode())
        paths.append(f"@{path}")
        ours |= switches_in(agent_module().split_arguments(named(text, number), is_file=True))
    assert ours == ask_java(*paths)
    assert len(ours) >= 2 * len(FILES)


@needs_java
@pytest.mark.parametrize("variable", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"])
def test_javas_variables_are_split_as_java_splits_them(variable: str) -> None:
    text = " ".join(named(value, number) for number, value in enumerate(VALUES))
    assert switches_in(agent_module().split_arguments(text, is_file=False)) == ask_java(**{variable: text})


def test_texts_without_end_are_read_in_linear_time() -> None:
    """By a quadratic pattern, the largest file would take minutes: these would take some."""
    module = agent_module()
    for part in (
        '"',
        '"\\',
        "#",
        "a",
        "'\n",
        "{",
        " a=b",
        " ",
        "/*",
        "//",
        ' a="\\"',
        "keyTab= ",
        "'\\",
        "\\",
        '"\\\n',
        "A{a.B required a=b;};",
    ):
        text = part * (40_000 // len(part))
        module.split_arguments(text, is_file=True)
        module.without_secrets(text)
        module.KEYTAB.findall(text)


@contextmanager
def started(node: Node, *argv: str, **environment: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """A real JVM that waits until it is ended, and what the agent says of it."""
    java = os.path.realpath(str(JAVA))
    start = [java, *argv, "-m", "java.rmi/sun.rmi.registry.RegistryImpl", "0"]
    node.configure({"broker": node.entry | {"process": {"start": start, "env": environment}}})
    node.ok("start", job="s1")
    node.ended("s1")

    def read() -> dict[str, Any]:
        facts: dict[str, Any] = wait_for(lambda: node.ok("facts"), lambda seen: seen["software"]["java"] == java, "Java runs", 30)
        return facts

    yield read


def ask_jcmd(pid: int) -> dict[str, str]:
    """What the JVM itself says: the properties that a switch may set."""
    jcmd = Path(os.path.realpath(str(JAVA))).with_name("jcmd")
    said = subprocess.run(
        [str(jcmd), str(pid), "VM.system_properties"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    lines = dict(line.split("=", 1) for line in said.splitlines() if re.match(r"(zookeeper|jute|java\.security\.auth)\.", line))
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in lines.items()}


@pytest.mark.slow
@needs_java
@pytest.mark.skipif(JAVA is None or not Path(os.path.realpath(JAVA)).with_name("jcmd").exists(), reason="needs a JDK")
def test_a_real_jvm_runs_with_what_the_agent_says(make: Callable[..., Node], tmp_path: Path) -> None:
    """A file of arguments, one that only the JVM reads, a relative one, three variables: the last of a name holds, and a login is read."""
    (tmp_path / "login.conf").write_text('Client { x.Digest required username="kafka" password="geheim"; }; // geheim\n')
    (tmp_path / "kafka.args").write_text(
        f'-Dzookeeper.client.secure=true # TLS\n"-Djava.security.auth.login.config={tmp_path}/login.conf"\n-Djute.maxbuffer=2\n'
    )
    (tmp_path / "vm.options").write_text("-Dzookeeper.sasl.clientconfig='Client'\n")
    node = make()
    (node.state / "broker").mkdir(parents=True, mode=0o700)
    (node.state / "broker" / "more.args").write_text(
        "-Dzookeeper.ssl.keyStore.password=geheim -Djute.maxbuffer=3\n"
    )  # beside its log
    more = {
        "JAVA_TOOL_OPTIONS": "-Djute.maxbuffer=1 -Dzookeeper.of.tool='a b'",
        "JDK_JAVA_OPTIONS": f"@{tmp_path}/kafka.args -Dzookeeper.of.jdk=1",
        "_JAVA_OPTIONS": "-Dzookeeper.last=1",
        "KAFKA_OPTS": "-Dzookeeper.unused=1",
    }
    with started(node, f"-XX:VMOptionsFile={tmp_path}/vm.options", "@more.args", "-Dzookeeper.last=0", **more) as read:
        facts = read()
        software = facts["software"]
        assert software["switches"] == ask_jcmd(facts["process"]["pid"]) | {"zookeeper.ssl.keyStore.password": "..."}
        assert len(software["switches"]) == 8
    assert (software["unread"], "geheim" in json.dumps(facts)) == ([], False)
    assert software["jaas"].split() == ["Client", "{", "x.Digest", "required", "username=...", "password=...;", "};"]


@pytest.mark.parametrize("name", ["KAFKA_OPTS", "JDK_JAVA_OPTIONS", "EXTRA_ARGS"])
def test_of_a_stopped_node_a_file_in_its_services_variables_is_read(make: Callable[..., Node], tmp_path: Path, name: str) -> None:
    """A switch there stands as on the command line."""
    (tmp_path / "kafka.args").write_text('-Dzookeeper.client.secure=true "-Djute.maxbuffer=4194304"')
    env = {name: f"-Dzookeeper.first=1 @{tmp_path}/kafka.args", "PASSWORD": "@geheim", "OPTIONS_FILE": "none"}
    software = make(process={"start": [SH, "-c", "exit 1"], "env": env}).ok("facts")["software"]
    assert software["switches"] == {"jute.maxbuffer": "4194304", "zookeeper.client.secure": "true", "zookeeper.first": "1"}
    assert (software["unread"], software["jaas"]) == ([], None)


def test_java_8_reads_one_variable_less(make: Callable[..., Node], tmp_path: Path) -> None:
    java = tmp_path / "jvm" / "bin" / "java"
    java.parent.mkdir(parents=True)
    shutil.copy(SH, java)
    release = tmp_path / "jvm" / "release"
    env = {"JDK_JAVA_OPTIONS": "-Dzookeeper.a=1", "JAVA_TOOL_OPTIONS": "-Dzookeeper.b=1", "JAVA_HOME": str(tmp_path / "jvm")}
    for version, switches in (("1.8.0_392", {"zookeeper.b": "1"}), ("11.0.2", {"zookeeper.a": "1", "zookeeper.b": "1"})):
        release.write_text(f'JAVA_VERSION="{version}"\n')
        node = make(process={"start": [SH, "-c", "exit 1"], "env": env})
        assert node.ok("facts")["software"]["switches"] == switches
        node.close()
        shutil.rmtree(node.root / "etc")
        shutil.rmtree(node.root / "var")


def be_long(path: Path) -> None:
    path.write_text("-Dzookeeper.a=1\n" * 20_000)


def lead_nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


UNREADABLE: list[tuple[str, Callable[[Path], object]]] = [
    ("it is not there", lambda _: None),
    ("a directory", lambda path: path.mkdir()),
    ("a pipe, which nobody writes", os.mkfifo),
    ("more than 256 KiB", be_long),
    ("a link that leads nowhere", lead_nowhere),
    ("a link to a device", lambda path: path.symlink_to("/dev/zero")),
]


@pytest.mark.slow
@pytest.mark.parametrize("act", [row[1] for row in UNREADABLE], ids=[row[0] for row in UNREADABLE])
@pytest.mark.parametrize("word", ["@{}", "-XX:VMOptionsFile={}", "-Djava.security.auth.login.config={}"])
def test_a_file_that_is_not_read_is_named(
    make: Callable[..., Node], tmp_path: Path, word: str, act: Callable[[Path], object]
) -> None:
    path = tmp_path / "kafka.args"
    act(path)
    env = {"KAFKA_OPTS": f"{word.format(path)} -Djute.maxbuffer=1"}
    software = make(process={"start": [SH, "-c", "exit 1"], "env": env}).ok("facts")["software"]
    assert (software["unread"], software["switches"]["jute.maxbuffer"], software["jaas"]) == ([str(path)], "1", None)


@pytest.mark.slow
def test_a_command_line_of_a_thousand_files_costs_a_few_of_them(make: Callable[..., Node], tmp_path: Path) -> None:
    """Kafka's user writes it: each file is a process of the agent's, and an observation must end in time."""
    paths = [tmp_path / f"{number}.args" for number in range(1000)]
    for number, path in enumerate(paths):
        path.write_text(f"-Dzookeeper.{number}=1")
    env = {"KAFKA_OPTS": " ".join(f"@{path}" for path in paths)}
    software = make(process={"start": [SH, "-c", "exit 1"], "env": env}).ok("facts")["software"]
    most = agent_module().MAX_READ
    assert list(software["switches"]) == sorted(f"zookeeper.{number}" for number in range(most))
    assert software["unread"] == [str(path) for path in paths[most : most + 10]]


@needs_root
@pytest.mark.parametrize("word", ["@{}", "-Djava.security.auth.login.config={}"])
def test_a_file_is_read_with_the_rights_of_the_service_which_named_it(shared: Path, word: str) -> None:
    path = shared / "login.conf"
    path.write_text("Client { x.Digest required; };")
    path.chmod(0o600)
    env = {"KAFKA_OPTS": word.format(path)}
    node = Node(shared, user="nobody", process={"start": [SH, "-c", "exit 1"], "env": env})
    try:
        assert node.ok("facts")["software"]["unread"] == [str(path)]
        path.chmod(0o604)
        assert node.agent is not None
        node.agent.kill()
        node.agent.communicate()
        assert node.ok("facts")["software"]["unread"] == []
    finally:
        node.close()


#: JAAS files; the agent shows no `geheim` of any.
LOGINS = [
    'Client { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/k" principal="a/b@C"; };',
    'KafkaServer {\n  a.B required username="x" password="geheim";\n  c.D optional;\n};\nClient { e.F sufficient; };',
    '/* { geheim */ "a.KafkaServer" { a.B requisite x="geheim;}//{" y=geheim; }; // geheim',
    "A { a.B required password='geheim'; };",
    "A { };",
    "A { a.B REQUIRED; };",
    "A { a.B required password=geheim }; ",
    "A { a.B required password=geheim; }",
    'A { a.B required password="geheim; };',
    "A { a.B required password geheim; };",
    "A { a.B geheim; };",
    "A { a.B required geheim; }; geheim {",
    'A { a.B required keyTab="/k\n"; y=geheim; };',
    "A a.B { geheim",
    "geheim",
    "",
]
PARSER = r"""
import java.nio.file.*;
import java.security.URIParameter;
import javax.security.auth.login.*;
public class Parse {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            StringBuilder said = new StringBuilder();
            try {
                Configuration read = Configuration.getInstance("JavaLoginConfig", new URIParameter(Paths.get(file).toUri()));
                for (String name : new String[] {"Client", "KafkaServer", "a.KafkaServer", "A"})
                    if (read.getAppConfigurationEntry(name) != null) {
                        said.append(name).append(":");
                        for (AppConfigurationEntry entry : read.getAppConfigurationEntry(name))
                            said.append(" ").append(entry.getLoginModuleName()).append("/").append(new java.util.TreeSet<>(entry.getOptions().keySet()));
                        said.append(";");
                    }
            } catch (Exception error) {
                said.append("refused");
            }
            System.out.println(said);
        }
    }
}
"""


def describe_login(text: str | None) -> str:
    """As the program above does."""
    if text is None:
        return "refused"
    options = re.findall(
        r"([\w.]+)\s+(?:required|requisite|sufficient|optional)((?:\s+[\w.]+\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s;]+))*)\s*;",
        text,
        re.IGNORECASE,
    )
    names = iter([sorted(re.findall(r"(\w+)\s*=", found)) for _, found in options])
    shown = {
        section: [f"{module}/[{', '.join(next(names))}]" for module in modules]
        for section, modules in read_login_modules(text).items()
    }
    known = [name for name in ("Client", "KafkaServer", "a.KafkaServer", "A") if shown.get(name)]
    return "".join(f"{name}: {' '.join(shown[name])};" for name in known)


@needs_java
def test_jaas_files_are_read_as_java_reads_them_and_no_secret_is_shown(tmp_path: Path) -> None:
    """A file that Java refuses is not read; the agent may refuse more, which is then not known."""
    program = tmp_path / "Parse.java"
    program.write_text(PARSER)
    paths = [tmp_path / f"{number}.conf" for number in range(len(LOGINS))]
    for path, text in zip(paths, LOGINS, strict=True):
        path.write_text(text)
    done = subprocess.run([str(JAVA), str(program), *map(str, paths)], capture_output=True, text=True, timeout=120, check=True)
    masked = [agent_module().without_secrets(text) for text in LOGINS]
    assert not any("geheim" in (text or "") for text in masked)
    theirs, ours = done.stdout.splitlines(), [describe_login(text) for text in masked]
    assert [row for row in zip(LOGINS, theirs, ours, strict=True) if row[2] not in (row[1], "refused")] == []
    assert sum(row != "refused" for row in ours) >= 5


def test_keytabs_that_the_service_cannot_read_or_others_can_are_named(make: Callable[..., Node], tmp_path: Path) -> None:
    open_tab, closed_tab, gone = (tmp_path / name for name in ("open.keytab", "closed.keytab", "gone.keytab"))
    for path, mode in ((open_tab, 0o644), (closed_tab, 0o640)):
        path.touch()
        path.chmod(mode)
    (tmp_path / "login.conf").write_text(f'Client {{ a.B required keyTab="{open_tab}"; c.D optional keyTab="{gone}"; }};')
    node = make(process={"start": [SH, "-c", "exit 1", f"-Djava.security.auth.login.config={tmp_path}/login.conf"]})
    node.properties.write_text(
        f'listener.name.sasl.gssapi.sasl.jaas.config=a.B required \\\n  useKeyTab=true keyTab="{closed_tab}" principal="x";\n'
        f"ssl.keystore.location={open_tab.with_name('ks.jks')}\n"
    )
    open_tab.with_name("ks.jks").touch()
    open_tab.with_name("ks.jks").chmod(0o644)
    facts = node.ok("facts")
    assert (facts["unreadable"], facts["exposed"]) == ([str(gone)], [str(open_tab)])
