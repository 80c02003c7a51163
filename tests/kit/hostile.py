"""Hostile peers."""

from __future__ import annotations

from typing import Final

#: Texts that a terminal, a log or a page would obey.
CONTROLS: Final = (
    "\x1b[2J\x1b[1;1H\x1b[32mok    all nodes\x1b[0m",
    "\x1b]0;owned\x07",
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",  # OSC 8: a link
    "\x9b2J",  # CSI in one character
    "a\rok    all nodes",
    "a\b\b\bok",
    "a\0b",
    "a\x85ok\u2028ok\u2029ok\x0bok\x0cok\x1cok",  # what ends lines besides a newline
    "\u202egnp.exe\u2066x\u2069",  # bidirectional overrides
    "a\u200b\u200d\ufeff\u00adb",  # nothing that is seen
    "\ud800",
    "\U000e0041\U000e0042",  # tags
    "a\n\nok    broker 2 on k2: forged\n",
)
#: Texts that Markdown, HTML or a chat would obey.
MARKUP: Final = (
    "[a](http://evil.example)",
    "[x](javascript:alert(1))",
    "![i](http://evil.example/p.png)",
    "[x][y]\n\n[y]: http://evil.example",
    "[x]\n\n[x]: /api/v2/dags",
    "<https://evil.example>",
    "https://evil.example/login",
    "HTTPS://EVIL.EXAMPLE",
    "www.evil.example",
    "https&#58;//evil.example",
    "https&colon;//evil.example",
    "https:\\/\\/evil.example",
    "ops@evil.example",
    "<ops@evil.example>",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</td></tr></table>",
    "<!-- hidden",
    "<?php 1 ?>",
    "<!channel>",
    "<!subteam^S1>",
    "<@U012AB3CD>",
    "<http://evil.example|ok>",
    "@channel",
    "x@everyone",
    "<at>all</at>",
)
