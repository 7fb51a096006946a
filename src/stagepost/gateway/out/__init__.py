"""The way out of the gateway: an ordinary stage posts each message to a consumer outside, until its end is known.

    from stagepost.gateway.out import Delivery, deliver

    deliver(app, "orders.out", Delivery(url="https://shop.example/orders", secret="whsec_…"), message=Order)

A worker of the app runs the deliveries, as it runs every stage. See docs/gateway_consumers.md.
"""

from stagepost.gateway.out.declaring import Refusal, deliver
from stagepost.gateway.out.delivery import Delivery, read_delivery
from stagepost.gateway.posted import Posted

__all__ = ["Delivery", "Posted", "Refusal", "deliver", "read_delivery"]
