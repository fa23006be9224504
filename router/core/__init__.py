"""Pure routing logic: no await, clock, socket or environment. Time and randomness are arguments.

`table.RoutingTable` is the front door; a notebook, the simulator and the control plane's dry runs use it alike.
"""
