"""What every mapping of a cluster file is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are refused; numbers are taken where text is expected, empty text is not."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, str_min_length=1)
