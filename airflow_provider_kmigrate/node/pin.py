"""What root, who installs `kmigrate-node`, finds behind the paths of the cluster file and of a broker's own file. Needs Python 3.6 alone.

`pin.py AGENT DRAFT` prints node.json of a draft, whose broker has null for `log_dirs`: with plain paths, its directories, and where the links of
its paths lead now. The install script has this file's text and runs it before it writes anything: what the agent would refuse is refused here.
"""

import contextlib
import importlib.util
import json
import os
import re
import sys
from importlib.machinery import SourceFileLoader
from typing import Any, Dict, List, Sequence, Tuple

MAX_LINKS = 40  # as the kernel
LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
NEITHER = "{0} has neither log.dirs nor log.dir. Write its directories there."
RELATIVE = "{0} names the directory {1}, which is relative to wherever Kafka is started. Write its absolute path there."
ABSENT = "{1}, which {0} names, is no directory. Correct the file, or make it."
FOREIGN = "{1}, which {0} names, belongs to others than the user {2}. Correct its owner, or the file, or --user."
TWICE = "{1} and another directory that {0} names are one. Correct the file."
UNSAFE = "{0} leads to {1} by a link that others than root may change ({2}); name {1} in the cluster file, if it is Kafka's"


class Wrong(Exception):
    """What must be corrected, as a sentence."""


def load_agent(path: str) -> Any:
    """The agent's own code: it opens paths, reads properties and judges a configuration here as it will later."""
    sys.dont_write_bytecode = True
    loader = SourceFileLoader("agent", path)
    spec = importlib.util.spec_from_loader("agent", loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]  # a loader was given
    loader.exec_module(module)
    return module


def simplify(path: str) -> str:
    """As `simplify_path` of the cluster file."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def decode(value: str) -> str:
    """A value of a properties file without its escapes, which are those of Java."""

    def letter(seen: Any) -> str:
        return chr(int(seen.group(1), 16)) if seen.group(1) else LETTERS.get(seen.group(2), seen.group(2))

    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.?))", letter, value)


def resolve(path: str) -> Tuple[str, List[str]]:
    """Where a path leads, and each link on the way by its real path. In one walk: a link that is exchanged meanwhile is in the list."""
    here, ahead, links = "/", path.split("/"), []  # type: str, List[str], List[str]
    while ahead:
        part = ahead.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            here = os.path.dirname(here)
            continue
        try:
            target = os.readlink(os.path.join(here, part))
        except OSError:  # no link, or not there
            here = os.path.join(here, part)
            continue
        links.append(os.path.join(here, part))
        if len(links) > MAX_LINKS:
            raise Wrong("%s leads in a circle of links" % path)
        ahead, here = target.split("/") + ahead, "/" if target[:1] == "/" else here
    return here, links


def follow(agent: Any, path: str, groups: Sequence[int]) -> str:
    """Where a path leads. Raises `Wrong` for a link that others than root could exchange, if root would act where it leads.

    In a directory that the service's user can change, each act has that user's rights: there a link gives nothing that the user has not.
    """
    real, links = resolve(path)
    with contextlib.ExitStack() as stack:
        is_safe = all(stack.enter_context(agent.Folder(os.path.dirname(link))).closed for link in links)
        if not is_safe and stack.enter_context(agent.Folder(os.path.dirname(real), groups)).private:
            raise Wrong(UNSAFE.format(path, real, ", ".join(links)))
    return real


def find_directories(agent: Any, file: str, real: str, role: Any) -> Dict[str, str]:
    """The directories that a broker's file names, as Kafka reads it, and where each is.

    Who may write that file chose them, so they must be that user's own, not some folder of root.
    """
    keys = agent.pairs(role.seen(real)[0] or "")  # with the rights of who may write there: what it names is shown
    named = keys.get("log.dirs") or keys.get("log.dir")
    if not named:
        raise Wrong(NEITHER.format(file))
    found = {}  # type: Dict[str, str]
    for name in filter(None, map(str.strip, decode("%s,%s" % (named, keys.get("metadata.log.dir", ""))).split(","))):
        if name[:1] != "/":
            raise Wrong(RELATIVE.format(file, name))
        path = resolve(name)[0]
        if not os.path.isdir(path):
            raise Wrong(ABSENT.format(file, name))
        with agent.Folder(path) as opened:
            owner = os.fstat(opened.handle)
        if owner.st_uid != role.user.pw_uid and not (owner.st_uid == 0 and owner.st_gid in role.groups and owner.st_mode & 0o020):
            raise Wrong(FOREIGN.format(file, path, role.user.pw_name))
        if path in found.values() and simplify(name) not in found:
            raise Wrong(TWICE.format(file, path))
        found[simplify(name)] = path
    return found


def pin(agent: Any, draft: Dict[str, Any]) -> Dict[str, Any]:
    """node.json of a draft. Raises `Wrong`, the agent's Refusal, ValueError, TypeError, KeyError and OSError."""
    for name, entry in draft["roles"].items():
        if "properties" not in entry:  # an application's unit
            continue
        properties = simplify(entry["properties"])
        role = agent.Role(name, dict(entry, log_dirs=[], properties=properties), "")
        paths = {properties: follow(agent, properties, role.groups)}
        if entry["log_dirs"] is not None:
            folders = {simplify(path): follow(agent, simplify(path), role.groups) for path in entry["log_dirs"]}
        elif not os.path.isfile(paths[properties]):
            raise Wrong("there is no file %s. Correct hosts.properties in the cluster file." % properties)
        else:
            folders = find_directories(agent, properties, paths[properties], role)
        paths.update(folders)
        entry.update(properties=properties, log_dirs=sorted(folders))
        links = {path: real for path, real in paths.items() if path != real}
        if links:
            entry["links"] = links
        checked = agent.Role(name, entry, "")
        for path in [checked.properties] + [os.path.join(folder, agent.META) for folder in checked.log_dirs]:
            checked.seen(path)  # as `facts` will
    return draft


def main(agent_path: str, draft_path: str) -> int:
    """Print node.json, or what must be corrected; the exit code."""
    agent = load_agent(agent_path)
    try:
        with open(draft_path) as file:
            print(json.dumps(pin(agent, json.load(file)), indent=1))
    except (Wrong, agent.Refusal, ValueError, TypeError, KeyError, OSError) as error:
        print("".join(character if character.isprintable() else "?" for character in str(error)))  # names are of files of others
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
