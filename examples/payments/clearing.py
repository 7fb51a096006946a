"""The clearing house as a service of its own. It has the same handler, another store, and talks over a broker."""

from __future__ import annotations

from examples.payments.app import transfer
from stagepost import App, Redelivery

app = App("clearing", redelivery=Redelivery.exponential(3, first_seconds=0.2))
app.endpoint("clearing.transfer")(transfer)
