"""Store and forward over HTTP, with a validator at its end, and a switch for each typical mistake on the way.

producer → door → queue → reader → validator

``python -m examples.store_and_forward`` runs the chain once with the gateway as door, queue and reader, and once with
each mistake. It prints for each run how many messages were lost and doubled.
"""
