"""Every row of preflight's tables around a healthy cluster."""

from __future__ import annotations

from tests.core import preflight_actors_rows as actors
from tests.core import preflight_alike_rows as alike
from tests.core import preflight_machines_rows as machines
from tests.core import preflight_protection_rows as protection
from tests.core import preflight_security_rows as security
from tests.core import preflight_units_rows as units
from tests.core import preflight_versions_rows as versions

WEAK = [(name, change, ["B9f"]) for name, change, found in protection.ROWS if found]
ROWS = [*versions.ROWS, *security.ROWS, *protection.LISTENERS, *WEAK, *alike.ROWS, *actors.ROWS, *units.ROWS, *machines.ROWS]
