"""Which values of free keys must be references: what is secret, and nothing else."""

from __future__ import annotations

import json

import pytest

from airflow_provider_kmigrate import spec
from airflow_provider_kmigrate.exceptions import SpecError
from tests.core.spec_text import GOOD


@pytest.mark.parametrize(
    ("key", "value", "reported"),
    [
        ("sasl.oauthbearer.token.endpoint.url", "https://idp/token", False),
        ("delegation.token.max.lifetime.ms", "604800000", False),
        ("password.encoder.iterations", "4096", False),
        (
            "listener.name.controller.plain.sasl.jaas.config",
            'X required username="ctl" password="${file:/s:pw}" user_ctl="${file:/s:pw}";',
            False,
        ),
        ("sasl.jaas.config", 'Krb5LoginModule required useKeyTab=true keyTab="/etc/k.keytab" principal="kafka/h@R";', False),
        ("sasl.jaas.config", 'ScramLoginModule required tokenauth="true" username="t" password="${file:/s:hmac}";', False),
        ("sasl.jaas.config", 'X required username="${file:/s:u}" password="geheim";', True),
        ("sasl.jaas.config", "X required username='a' password='${file:/s:pw}' user_b=geheim;", True),
        ("sasl.jaas.config", 'OAuthBearerLoginModule required clientId="a" clientSecret="geheim";', True),
        ("delegation.token.secret.key", "geheim", True),
        ("ssl.keystore.key", "geheim", True),
        ("fs.s3a.access.key", "geheim", True),
    ],
)
def test_only_what_is_secret_must_be_a_reference(key: str, value: str, *, reported: bool) -> None:
    text = GOOD + f"quorum: {{properties: {{{key}: {json.dumps(value)}}}}}\n"
    if not reported:
        assert spec.loads(text).controller_properties[key] == value
        return
    with pytest.raises(SpecError) as refused:
        spec.loads(text)
    assert [reason.code for reason in refused.value.reasons] == ["F06"]
    assert "geheim" not in str(refused.value)
