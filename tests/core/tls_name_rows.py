"""Subjects and `ssl.principal.mapping.rules`: the name that Kafka makes of them; None where it refuses the client or the rules."""

from __future__ import annotations

_LONG = "CN=broker1.example.com,OU=Kafka,O=Acme,L=London,ST=London,C=GB"

ROWS: list[tuple[str, str, str | None]] = [
    (_LONG, "DEFAULT", _LONG),
    (_LONG, "", _LONG),
    (_LONG, "RULE:^CN=(.*?),.*$/$1/,DEFAULT", "broker1.example.com"),
    (_LONG, "RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", "BROKER1.EXAMPLE.COM@KAFKA"),
    (_LONG, "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "broker1.example.com"),
    (_LONG, "RULE:.*CN[\\s]?=[\\s]?([a-zA-Z0-9.]*)?.*/$1/", "broker1.example.com"),
    (_LONG, "RULE:^CN=([^,]+),.*$/kafka-$1\\/x/, RULE:^OU=(.*),CN=(.*?),.*$/$2/ ,DEFAULT", "kafka-broker1.example.com/x"),
    (_LONG, "RULE:^CN=(.*?), OU=.*$/$1/,DEFAULT", _LONG),
    (_LONG, "RULE:.*/x/", "xx"),
    (_LONG, "DEFAULT,RULE:^CN=(.*)$/$1/", _LONG),
    ("CN=only", "RULE:^CN=(.*?),.*$/$1/,DEFAULT", "CN=only"),
    ("CN=only", "RULE:^CN=(.*?),.*$/$1/", None),
    ("CN=only", "RULE:^CN=(.*)$/$1", None),
    ("CN=only", "garbage", None),
    ("CN=a/b,O=c", "RULE:^CN=(.*?),.*$/$1/", "a/b"),
    ("OU=a,CN=b,DC=x,DC=y", "RULE:^CN=(.*?),.*$/$1/,RULE:^OU=.*,CN=(.*?),.*$/$1/", "b"),
    ("CN=Broker,OU=x", "RULE:^CN=([a-zA-Z0-9.]*).*$//L,DEFAULT", ""),
]

#: Java makes a name of these; what Python would make of them is not certain.
NOT_CERTAIN: list[tuple[str, str]] = [
    ("CN=only", "RULE:(?<n>CN=.*)/x/"),
    ("CN=only", "RULE:^CN=(\\p{Lower}*)$/$1/"),
    ("CN=only", "RULE:^CN=([a-z&&[^b]]*)$/$1/"),
    ("CN=a,OU=b", "RULE:^CN=(.*?),.*$/$2/"),
    ("CN=only", "${env:RULES}"),
]
